// SPDX-License-Identifier: Apache-2.0
#include "formats/olmo_core/v1/sidecars.h"

#include <algorithm>
#include <filesystem>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/olmo_core/v1/index.h"
#include "lib/io/file.h"

namespace ckpt::olmo_core::v1 {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxDepth = 8;
constexpr size_t kMostFiles = 1'000'000;

// Of ckpt itself.
constexpr std::string_view kManifest = ".ckpt-manifest.json";

class Collector {
 public:
  Collector(const Found& found, Catalog& catalog)
      : found_(found), catalog_(catalog) {}

  void collect() {
    folders_.push_back("");
    while (!folders_.empty()) {
      const std::string folder = std::move(folders_.back());
      folders_.pop_back();
      for (const std::string& name :
           io::list_directory(io::join(found_.home, folder)))
        visit(folder, name);
    }
    std::ranges::sort(catalog_.sidecars, {}, &Sidecar::name);
  }

 private:
  // Files of the parts are read, or strays that a problem told about.
  bool is_part_file(const std::string& folder, const std::string& name) const {
    if (folder.empty() && name == kManifest) return true;
    return std::ranges::find(found_.parts, folder) != found_.parts.end() &&
           (name == kIndexName || rank_of_file(name).has_value());
  }

  void visit(const std::string& folder, const std::string& name) {
    if (is_part_file(folder, name)) return;
    const std::string below = folder.empty() ? name : io::join(folder, name);
    const std::string path = io::join(found_.home, below);
    if (io::is_directory(path)) {
      if (io::is_link(path) ||
          std::ranges::count(below, '/') >= static_cast<long>(kMaxDepth))
        leave_out(path);
      else
        folders_.push_back(below);
      return;
    }
    const auto size = io::file_size(path);
    if (!size) return leave_out(path);
    if (catalog_.sidecars.size() >= kMostFiles)
      throw input_error({found_.home, {}}, "more than {} files lie in it",
                        kMostFiles)
          .with_hint("move the checkpoint into a folder of its own");
    catalog_.sidecars.push_back({below, path, *size});
  }

  void leave_out(const std::string& path) {
    catalog_.problems.push_back(
        warning("sidecar_left_out", {path, {}},
                "is not a plain file or folder: not copied"));
  }

  const Found& found_;
  Catalog& catalog_;
  std::vector<std::string> folders_;
};

}  // namespace

void add_sidecars(const Found& found, Catalog& catalog) {
  Collector(found, catalog).collect();
}

}  // namespace ckpt::olmo_core::v1
