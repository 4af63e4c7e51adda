// SPDX-License-Identifier: Apache-2.0
#include "formats/olmo_core/sidecars.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "ckpt/error.h"
#include "formats/file_list.h"
#include "formats/olmo_core/locate.h"
#include "formats/olmo_core/olmo_core.h"
#include "lib/io/file.h"

namespace ckpt::olmo_core {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxDepth = 8;
// The largest machines have some hundred thousand ranks, of one file each.
constexpr size_t kMostFiles = 1'000'000;

// Of ckpt itself.
constexpr std::string_view kManifest = ".ckpt-manifest.json";

class Collector {
 public:
  Collector(const std::string& home, Catalog& catalog)
      : home_(home), catalog_(catalog) {}

  void collect() {
    folders_.push_back("");
    while (!folders_.empty()) {
      const std::string folder = std::move(folders_.back());
      folders_.pop_back();
      for (const std::string& name :
           io::list_directory(io::join(home_, folder)))
        visit(folder, name);
    }
    std::ranges::sort(catalog_.sidecars, {}, &Sidecar::name);
  }

 private:
  void visit(const std::string& folder, const std::string& name) {
    if (folder.empty() && (name == kDataFolder || name == kManifest ||
                           name == ".metadata.tmp" || is_part_name(name)))
      return;
    const std::string below = folder.empty() ? name : io::join(folder, name);
    const std::string path = io::join(home_, below);
    std::error_code failed;
    if (io::is_directory(path)) {
      if (name == ".git" || name == ".cache") return;
      if (fs::is_symlink(fs::symlink_status(path, failed)) ||
          std::ranges::count(below, '/') >= static_cast<long>(kMaxDepth))
        leave_out(path);
      else
        folders_.push_back(below);
      return;
    }
    // Weights beside it are another model's, or the same again.
    if (formats::part_by_name(below) == "model") return;
    const auto size = io::file_size(path);
    if (!size) return leave_out(path);
    if (catalog_.sidecars.size() >= kMostFiles)
      throw input_error({home_, {}}, "more than {} files lie in it", kMostFiles)
          .with_hint("name the folder model_and_optim in it");
    catalog_.sidecars.push_back({below, path, *size});
  }

  void leave_out(const std::string& path) {
    catalog_.problems.push_back({Problem::Severity::kWarning,
                                 "sidecar_left_out",
                                 path,
                                 {},
                                 "is no plain file or folder: not copied"});
  }

  const std::string& home_;
  Catalog& catalog_;
  std::vector<std::string> folders_;
};

}  // namespace

void add_sidecars(const std::string& home, Catalog& catalog) {
  Collector(home, catalog).collect();
}

std::optional<uint32_t> train_rank(std::string_view sidecar) {
  constexpr std::string_view kBefore = "train/rank";
  constexpr std::string_view kAfter = ".pt";
  if (!sidecar.starts_with(kBefore) || !sidecar.ends_with(kAfter))
    return std::nullopt;
  sidecar.remove_prefix(kBefore.size());
  sidecar.remove_suffix(std::min(kAfter.size(), sidecar.size()));
  uint32_t rank = 0;
  const char* end = sidecar.data() + sidecar.size();
  const auto [stop, error] = std::from_chars(sidecar.data(), end, rank);
  if (sidecar.empty() || error != std::errc() || stop != end)
    return std::nullopt;
  return rank;
}

}  // namespace ckpt::olmo_core
