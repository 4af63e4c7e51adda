// SPDX-License-Identifier: Apache-2.0
#include "formats/olmo_core/v1/locate.h"

#include <algorithm>
#include <map>
#include <optional>

#include "ckpt/error.h"
#include "formats/olmo_core/v1/index.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::olmo_core::v1 {
namespace {

using text::printable;

bool has_rank_files(const std::string& directory) {
  return io::is_directory(directory) &&
         std::ranges::any_of(io::list_directory(directory),
                             [](const std::string& name) {
                               return rank_of_file(name).has_value();
                             });
}

// For a directory that is a checkpoint itself.
Found look_at(const std::string& path) {
  Found found;
  for (const std::string_view folder : {kModelFolder, kOptimFolder}) {
    const std::string below = io::join(path, folder);
    if (looks_like_index(io::join(below, kIndexName)))
      found.parts.emplace_back(folder);
    else if (has_rank_files(below) && !io::is_file(io::join(below, kIndexName)))
      found.broken = folder;
  }
  if (!found.parts.empty()) {
    found.home = path;
    found.why = "holds " + io::join(found.parts[0], kIndexName);
    return found;
  }
  if (looks_like_index(io::join(path, kIndexName))) {
    found.home = path;
    found.parts = {""};
    found.broken.clear();
    found.why = "its metadata.json lists tensors by files of ranks";
    return found;
  }
  if (!found.broken.empty()) {
    found.home = path;
    found.why =
        "holds files of ranks in " + found.broken + ", but no metadata.json";
    return found;
  }
  found.why = "no metadata.json of tensors by files of ranks in it";
  return found;
}

// step100, step100-tmp
std::optional<uint64_t> step_of(std::string_view name) {
  constexpr std::string_view kStep = "step";
  if (!name.starts_with(kStep)) return std::nullopt;
  name.remove_prefix(kStep.size());
  if (name.ends_with("-tmp")) name.remove_suffix(4);
  return text::number(name);
}

// Finds the newest complete checkpoint below, or the newest unfinished one.
Found follow(const std::string& path, Found none) {
  std::map<std::pair<uint64_t, bool>, std::string> steps;
  for (const std::string& name : io::list_directory(path)) {
    const auto step = step_of(name);
    if (step && io::is_directory(io::join(path, name)))
      steps[{*step, !name.ends_with("-tmp")}] = name;
  }
  std::vector<std::string> unfinished;
  Found newest = std::move(none);
  for (auto at = steps.rbegin(); at != steps.rend(); ++at) {
    Found found = look_at(io::join(path, at->second));
    if (found.home.empty()) continue;
    found.chosen = at->second;
    const bool done = found.finished() && at->first.second;
    if (done) {
      found.unfinished = std::move(unfinished);
      found.why = "holds " + printable(found.chosen);
      return found;
    }
    unfinished.push_back(at->second);
    if (newest.home.empty()) newest = std::move(found);
  }
  return newest;
}

}  // namespace

Found locate(const std::string& path) {
  try {
    if (!io::is_directory(path)) {
      if (io::base_name(path) == kIndexName && looks_like_index(path))
        return look_at(io::parent(path));
      return {.why = "not a directory with a metadata.json"};
    }
    Found found = look_at(path);
    if (!found.home.empty()) return found;
    return follow(path, std::move(found));
  } catch (const Error& error) {
    // What can't be read is for another format to explain.
    return {.why = error.problem()};
  }
}

}  // namespace ckpt::olmo_core::v1
