// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/read/unread.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/hf/weight_names.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "lib/text/format.h"

namespace ckpt::runs {

using text::printable;

namespace {

// The folders below, few levels deep: no trainer hides a model further down.
// Names with a dot are files, which nobody wants to ask a million times. What
// can't be looked at is no model that is missed.
std::vector<std::string> folders_below(const std::string& folder) {
  constexpr size_t kMost = 1000, kDeep = 3;
  std::vector<std::string> found{folder};
  const auto is_folder = [](const std::string& path) {
    try {
      return io::is_directory(path);
    } catch (const Error&) {
      return false;
    }
  };
  const auto names_in = [](const std::string& path) {
    try {
      return io::list_directory(path);
    } catch (const Error&) {
      return std::vector<std::string>();
    }
  };
  size_t next = 0;
  for (size_t level = 0; level < kDeep; ++level)
    for (const size_t end = found.size(); next < end; ++next) {
      const std::string below = found[next];
      for (const std::string& name : names_in(below)) {
        std::string path = io::join(below, name);
        if (name.find('.') == name.npos && found.size() < kMost &&
            is_folder(path))
          found.push_back(std::move(path));
      }
    }
  return found;
}

}  // namespace

void note_unread_weights(const std::string& folder,
                         const std::vector<std::string>& homes,
                         Catalog& catalog) {
  if (io::is_url(folder) || !io::is_directory(folder)) return;
  std::vector<std::string> weights = {".metadata"};
  for (const formats::WeightNames& names : formats::weight_names())
    for (const std::string& file :
         {std::string(names.safetensors) + ".safetensors",
          std::string(names.torch) + ".bin"}) {
      weights.push_back(file);
      weights.push_back(file + ".index.json");
    }
  std::set<std::string> folders;  // with a file that is read
  for (const File& file : catalog.files) folders.insert(io::parent(file.path));
  for (const std::string& below : folders_below(folder)) {
    if (below == folder || folders.contains(below)) continue;
    for (const std::string& name : weights) {
      const std::string path = io::join(below, name);
      if (io::is_link(path) || !io::is_file(path)) continue;
      if (std::ranges::any_of(catalog.problems, [&](const Problem& problem) {
            return problem.kind == "second_copy" && problem.file == path;
          }))
        break;
      const bool is_home = std::ranges::any_of(homes, [&](const auto& home) {
        return !home.empty() && below.ends_with("/" + home);
      });
      if (is_home)
        catalog.problems.push_back(
            remark("second_copy", {path, {}},
                   "holds the same model again, as transformers loads it; "
                   "that of the other files is read"));
      else
        catalog.problems.push_back(
            warning("unread_weights", {path, {}},
                    "holds weights that no part of the step reads: name their "
                    "folder to read them"));
      break;  // one file stands for the folder
    }
  }
}

void note_unread_shards(const std::string& index, Catalog& catalog) {
  constexpr std::string_view kIndex = ".index.json";
  const std::string name = io::base_name(index);
  if (!name.ends_with(kIndex)) return;
  const std::string file = name.substr(0, name.size() - kIndex.size());
  const size_t dot = file.rfind('.');
  if (dot == file.npos) return;
  std::set<std::string_view> read;
  for (const File& one : catalog.files) read.insert(one.path);
  const std::string folder = io::parent(index);
  for (const Name& one : names_like(
           folder, file.substr(0, dot) + "-{s}-of-{n}" + file.substr(dot)))
    if (const std::string path = io::join(folder, one.path);
        !read.contains(path))
      catalog.problems.push_back(
          warning("unread_file", {path, {}},
                  "{} does not list it: it may be of an earlier save",
                  printable(name)));
}

bool note_left_ranks(const Part& part, const std::string& folder,
                     const std::vector<Name>& names, uint64_t ranks,
                     Catalog& catalog) {
  if (names.empty()) return false;
  const auto add = [&](const std::string& name, std::string message) {
    catalog.problems.push_back(warning(
        "stale_part", {io::join(folder, name), {}}, "{}", std::move(message)));
    return true;
  };
  if (!part.instead.empty())
    for (const Name& one : names_like(folder, part.instead))
      return add(one.path, fmt::format("is what one rank alone writes, {} of "
                                       "several: one is of an earlier save",
                                       printable(names[0].path)));
  const Name& last = names.back();
  if (ranks == 0 || last.numbers.at("r") < ranks) return false;
  return add(last.path,
             fmt::format("is of rank {}, the model of {} rank{}: it is of an "
                         "earlier save",
                         last.numbers.at("r"), ranks, ranks == 1 ? "" : "s"));
}

}  // namespace ckpt::runs
