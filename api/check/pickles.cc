// SPDX-License-Identifier: Apache-2.0
#include "api/check/pickles.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <set>
#include <span>

#include "ckpt/note.h"
#include "containers/foreign.h"
#include "containers/hf/weight_names.h"
#include "containers/torch/container.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "lib/text/format.h"

namespace ckpt::library {

void PickleCheck::begin(const Catalog& catalog, bool reads,
                        std::vector<Problem>& problems) {
  if (reads && io::is_url(catalog.path)) heads_.emplace();
  if (!io::is_directory(catalog.path)) {
    std::set<std::string> paths{catalog.path};
    for (const File& file : catalog.files)
      if (!file.path.empty() && io::is_file(file.path)) paths.insert(file.path);
    files_.assign(paths.begin(), paths.end());
  }
  folder_ = catalog.path;
  in_run_ = catalog.run.has_value();
  at_ = problems.size();
  std::vector<Problem> found = this->found();
  count_ = found.size();
  std::ranges::move(found, std::back_inserter(problems));
}

void PickleCheck::again(std::vector<Problem>& problems) {
  if (!heads_ || heads_->all_harmless()) return;
  const std::vector<Problem> found = this->found();
  const auto at = problems.begin() + static_cast<std::ptrdiff_t>(at_);
  problems.insert(problems.erase(at, at + static_cast<std::ptrdiff_t>(count_)),
                  found.begin(), found.end());
}

reshard::Passed PickleCheck::passed(const Catalog& catalog) {
  if (!heads_) return {};
  heads_->expect(catalog);
  return
      [this](uint32_t file, uint64_t offset, std::span<const std::byte> bytes) {
        heads_->see(file, offset, bytes);
      };
}

bool PickleCheck::is_foreign(const scan::FileScan& file) const {
  if (!file.unknown) return false;
  const auto known = formats::recognise_file(file.path);
  return (known && known->stands_in) ||
         (!in_run_ && io::parent(file.path) != folder_);
}

// "argparse.Namespace, pathlib.PosixPath": harmless, and still not weights; ""
// for what is.
std::string PickleCheck::refused_of(const scan::FileScan& file) {
  constexpr uint8_t kNewest = 3;  // torch's own unpickler knows no frames
  if (file.protocol > kNewest)
    return fmt::format("pickle protocol {}", file.protocol);
  std::set<std::string> names;
  for (const scan::Global& global : file.globals)
    if (global.harmless && !torch::is_allowed_global(global.mention.module +
                                                     ' ' + global.mention.name))
      names.insert(global.mention.module + '.' + global.mention.name);
  return text::printable(fmt::format("{}", fmt::join(names, ", ")));
}

// Without one, nothing says that a library is to load the folder.
bool PickleCheck::has_configuration(const std::string& folder) {
  return io::is_file(io::join(folder, "config.json")) ||
         io::is_file(io::join(folder, "adapter_config.json"));
}

std::vector<Problem> PickleCheck::found() {
  scan::Heads* const heads = heads_ ? &*heads_ : nullptr;
  std::vector<Problem> found;
  for (const scan::FileScan& file : files_.empty()
                                        ? scan::scan_path(folder_, heads)
                                        : scan::scan_files(files_, heads)) {
    for (const scan::Global& global : file.globals)
      if (global.asked)
        found.push_back(warning("remote_code", {file.path, {}},
                                "a loader that is told to trust it runs {}",
                                scan::describe(global)));
      else if (!global.harmless)
        found.push_back(damage("executes", {file.path, {}},
                               "loading it elsewhere runs {}",
                               scan::describe(global)));
    // A loader that looks for the file by its name loads weights alone.
    if (formats::has_loader(io::base_name(file.path)) &&
        has_configuration(io::parent(file.path)))
      if (std::string refused = refused_of(file); !refused.empty())
        found.push_back(damage("refused_pickle", {file.path, {}},
                               "torch.load(weights_only=True), with which its "
                               "loader reads it, refuses {}; ckpt convert "
                               "with --to safetensors keeps the tensors alone",
                               refused));
    // Dead links and FIFOs are named where the checkpoint is read.
    if (!file.problem.empty() && !file.absent && is_foreign(file))
      found.push_back(warning("unreadable_pickle", {file.path, {}},
                              "is not read: {}", file.problem));
    else if (!file.problem.empty() && !file.absent)
      found.push_back(damage("unreadable_pickle", {file.path, {}},
                             "{}; what loading it would run is not known",
                             file.problem));
  }
  return found;
}

}  // namespace ckpt::library
