// SPDX-License-Identifier: Apache-2.0
#include "formats/olmo_core/sidecars.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/torch/container.h"
#include "formats/file_list.h"
#include "formats/olmo_core/locate.h"
#include "formats/olmo_core/olmo_core.h"
#include "formats/rank_holes.h"
#include "lib/io/file.h"
#include "lib/io/listed.h"
#include "lib/manifest.h"
#include "lib/pickle/value.h"
#include "lib/text/number.h"

namespace ckpt::olmo_core {
namespace {

constexpr size_t kMaxDepth = 8;
// The largest machines have some hundred thousand ranks, with one file each.
constexpr size_t kMostFiles = 1'000'000;

class Collector {
 public:
  Collector(const std::string& home, const IsOmitted& is_omitted,
            const char* hint, Catalog& catalog)
      : home_(home), is_omitted_(is_omitted), hint_(hint), catalog_(catalog) {}

  void collect() {
    folders_.push_back("");
    while (!folders_.empty()) {
      const std::string folder = std::move(folders_.back());
      folders_.pop_back();
      for (const std::string& name :
           io::list_directory(io::join(home_, folder)))
        visit(folder.empty() ? name : io::join(folder, name));
    }
    std::ranges::sort(catalog_.sidecars, {}, &Sidecar::name);
  }

 private:
  void visit(const std::string& below) {
    const std::string path = io::join(home_, below);
    // What has the name of a part must be there.
    const bool is_other = formats::part_by_name(below) == "other";
    const bool is_folder =
        is_other ? io::is_listed_directory(path) : io::is_directory(path);
    if (is_omitted_(below, is_folder)) return;
    if (is_folder) {
      if (io::is_link(path) ||
          std::ranges::count(below, '/') >= static_cast<long>(kMaxDepth))
        leave_out(path);
      else
        folders_.push_back(below);
      return;
    }
    if (is_other ? !io::is_listed_file(path) : !io::is_file(path))
      return leave_out(path);
    if (catalog_.sidecars.size() >= kMostFiles)
      throw input_error({home_, {}}, "more than {} files lie in it", kMostFiles)
          .with_hint(hint_);
    catalog_.sidecars.push_back({below, path, *io::file_size(path)});
  }

  void leave_out(const std::string& path) {
    catalog_.problems.push_back(
        warning("sidecar_left_out", {path, {}},
                "is not a plain file or folder: not copied"));
  }

  const std::string& home_;
  const IsOmitted& is_omitted_;
  const char* hint_;
  Catalog& catalog_;
  std::vector<std::string> folders_;
};

// Payload, what git and the hub's client keep, and weights: any beside the
// payload are another model's, or the same again.
bool is_no_sidecar(const std::string& below, bool is_folder) {
  if (below == kDataFolder || below == kManifestName ||
      below == ".metadata.tmp" ||
      (below.find('/') == below.npos && is_part_name(below)))
    return true;
  if (!is_folder) return formats::part_by_name(below) == "model";
  const std::string name = io::base_name(below);
  return name == ".git" || name == ".cache";
}

}  // namespace

void collect_sidecars(const std::string& home, const IsOmitted& is_omitted,
                      const char* hint, Catalog& catalog) {
  Collector(home, is_omitted, hint, catalog).collect();
}

void add_sidecars(const std::string& home, Catalog& catalog) {
  collect_sidecars(home, is_no_sidecar, "name the folder model_and_optim in it",
                   catalog);
}

void check_train_files(const std::string& home, Catalog& catalog,
                       const torch::Limits& limits) {
  std::set<uint64_t> have;
  std::string first;
  for (const Sidecar& sidecar : catalog.sidecars) {
    const auto rank = train_rank(sidecar.name);
    if (!rank) continue;
    if (have.insert(*rank).second && first.empty()) first = sidecar.path;
  }
  // All ranks take rank 0's if the number of ranks has changed.
  if (have.empty() || have == std::set<uint64_t>{0}) return;
  uint64_t world = 0;
  // An unreadable file is found when all of them are read.
  try {
    Catalog aside;
    const torch::Container file = torch::open_container(first, aside, limits);
    const pickle::Document& document = *file.document;
    const auto size =
        document.as_int(document.find(document.root(), "world_size"));
    if (size && *size > 0 && *size <= int64_t{kMostFiles})
      world = static_cast<uint64_t>(*size);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kDamaged) throw;
  }
  formats::check_rank_files(
      have, std::max(world, *have.rbegin() + 1),
      [&](uint64_t rank) {
        return io::join(home, fmt::format("train/rank{}.pt", rank));
      },
      world ? fmt::format("world_size {}", world) : "a gap in their numbers",
      catalog);
}

std::optional<uint32_t> train_rank(std::string_view sidecar) {
  constexpr std::string_view kBefore = "train/rank";
  constexpr std::string_view kAfter = ".pt";
  if (!sidecar.starts_with(kBefore) || !sidecar.ends_with(kAfter))
    return std::nullopt;
  sidecar.remove_prefix(kBefore.size());
  sidecar.remove_suffix(std::min(kAfter.size(), sidecar.size()));
  return text::number<uint32_t>(sidecar);
}

}  // namespace ckpt::olmo_core
