// SPDX-License-Identifier: Apache-2.0
#include "formats/fairseq2/scan.h"

#include <fmt/format.h>

#include <map>

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/text/number.h"

namespace ckpt::fairseq2 {
namespace {

using io::is_directory;
using io::is_file;
using io::join;

// Empty if it can't be listed.
std::vector<std::string> names_in(const std::string& directory) {
  if (!is_directory(directory)) return {};
  try {
    return io::list_directory(directory);
  } catch (const Error&) {
    return {};
  }
}

// True for a directory pp_<n> with a tp_<n> that has an sdp_<n>.pt.
bool holds_shards(const std::string& stage) {
  for (const std::string& tp : names_in(stage)) {
    if (!number_in(tp, "tp_")) continue;
    for (const std::string& sdp : names_in(join(stage, tp)))
      if (number_in(sdp, "sdp_", ".pt")) return true;
  }
  return false;
}

bool is_model_dir(const std::string& directory) {
  for (const std::string& name : names_in(directory)) {
    if (number_in(name, "pp_") && holds_shards(join(directory, name)))
      return true;
  }
  return false;
}

bool is_old_step(const std::string& directory) {
  if (!number_in(io::base_name(directory), "step_")) return false;
  return is_file(join(directory, "model.pt")) ||
         is_file(join(directory, "model.0.pt"));
}

std::optional<Location> as_step(const std::string& directory) {
  Location found{.level = Level::kStep, .path = directory};
  found.step = number_in(io::base_name(directory), "step_");
  if (const std::string model = join(directory, "model"); is_model_dir(model)) {
    found.model_dir = model;
    return found;
  }
  found.old = is_old_step(directory);
  return found.old ? std::optional(found) : std::nullopt;
}

std::optional<Location> as_base(const std::string& directory) {
  std::map<uint64_t, std::string> steps;
  for (const std::string& name : names_in(directory)) {
    if (const auto step = number_in(name, "step_"))
      steps.emplace(*step, join(directory, name));
  }
  size_t skipped = 0;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step, ++skipped) {
    auto found = as_step(step->second);
    if (!found) continue;
    found->level = Level::kBase;
    found->step = step->first;
    found->chosen = fmt::format("step_{}: newest of {} in {}", step->first,
                                steps.size(), directory);
    if (skipped > 0)
      found->chosen += fmt::format(" with a model ({} newer without)", skipped);
    return found;
  }
  return std::nullopt;
}

// The entries PREFIX<n>SUFFIX of a directory; checks that they are 0, 1, 2 …
std::vector<std::string> sequence(const std::string& directory,
                                  const char* prefix, const char* suffix,
                                  std::vector<std::string>& strays) {
  std::map<uint64_t, std::string> found;
  for (const std::string& name : io::list_directory(directory)) {
    const auto number = number_in(name, prefix, suffix);
    if (!number) {
      strays.push_back(join(directory, name));
      continue;
    }
    const std::string expected = numbered(prefix, *number) + suffix;
    if (name != expected)
      throw input_error({join(directory, name), {}},
                        "not a name that fairseq2 gives: expected {}",
                        expected);
    found.emplace(*number, join(directory, name));
  }
  if (found.empty())
    throw input_error({directory, {}}, "{}{} is missing", numbered(prefix, 0),
                      suffix)
        .with_hint("the file of this rank was not saved or copied: fetch it");
  std::vector<std::string> paths;
  for (const auto& [number, path] : found) {
    if (number != paths.size())
      throw input_error({directory, {}}, "{}{} is missing, but {} is there",
                        numbered(prefix, paths.size()), suffix,
                        io::base_name(path))
          .with_hint(
              "restore the missing file; without it the tensors are "
              "not whole");
    paths.push_back(path);
  }
  return paths;
}

// The "pp_00/tp_01" of a path.
std::string rank_of(const std::string& path) {
  return join(io::base_name(io::parent(path)), io::base_name(path));
}

}  // namespace

std::string numbered(const char* prefix, uint64_t number) {
  return fmt::format("{}{:02}", prefix, number);
}

std::optional<uint64_t> number_in(const std::string& name,
                                  const std::string& prefix,
                                  const std::string& suffix) {
  if (!name.starts_with(prefix) || !name.ends_with(suffix)) return std::nullopt;
  if (name.size() <= prefix.size() + suffix.size()) return std::nullopt;
  return text::number(std::string_view(name).substr(
      prefix.size(), name.size() - prefix.size() - suffix.size()));
}

Found locate(const std::string& path) {
  if (!is_directory(path)) return {std::nullopt, "not a directory"};
  if (is_model_dir(path)) {
    Location found{.level = Level::kModel, .path = path, .model_dir = path};
    found.step = number_in(io::base_name(io::parent(path)), "step_");
    return {found, "holds pp_00/tp_00/sdp_00.pt"};
  }
  if (auto found = as_step(path)) {
    const char* why =
        found->old ? "a step with model.pt" : "a step with model/";
    return {std::move(found), why};
  }
  if (auto found = as_base(path)) {
    return {std::move(found), "a directory of steps"};
  }
  return {std::nullopt, "no pp_00, model/pp_00 or step_N in it"};
}

std::vector<RankFile> rank_files(const Grid& grid) {
  std::vector<RankFile> all;
  for (uint32_t pp = 0; pp < grid.pp(); ++pp)
    for (uint32_t tp = 0; tp < grid.files[pp].size(); ++tp)
      for (uint32_t dp = 0; dp < grid.files[pp][tp].size(); ++dp)
        all.push_back({pp, tp, dp, &grid.files[pp][tp][dp]});
  return all;
}

Grid scan_grid(const std::string& directory) {
  Grid grid;
  for (const std::string& stage : sequence(directory, "pp_", "", grid.strays)) {
    auto& ranks = grid.files.emplace_back();
    for (const std::string& rank : sequence(stage, "tp_", "", grid.strays))
      ranks.push_back(sequence(rank, "sdp_", ".pt", grid.strays));
    if (ranks.size() != grid.tp())
      throw input_error({stage, {}}, "{} tensor-parallel ranks, pp_00 has {}",
                        ranks.size(), grid.tp());
    for (const auto& files : ranks) {
      if (files.size() == grid.dp()) continue;
      throw input_error({io::parent(files.front()), {}},
                        "{} files, pp_00/tp_00 has {}", files.size(), grid.dp())
          .with_hint("every tensor-parallel rank has as many sdp files; " +
                     rank_of(io::parent(files.front())) +
                     " is not of one piece with the others");
    }
  }
  return grid;
}

Grid scan_old(const std::string& step_dir) {
  Grid grid;
  auto& ranks = grid.files.emplace_back();
  const std::string whole = join(step_dir, "model.pt");
  if (is_file(whole)) {
    if (is_file(join(step_dir, "model.0.pt")))
      throw input_error({step_dir, {}}, "holds both model.pt and model.0.pt");
    ranks.push_back({whole});
    return grid;
  }
  std::map<uint64_t, std::string> found;
  for (const std::string& name : io::list_directory(step_dir)) {
    if (const auto number = number_in(name, "model.", ".pt"))
      found.emplace(*number, join(step_dir, name));
  }
  for (const auto& [number, path] : found) {
    if (number != ranks.size())
      throw input_error({step_dir, {}},
                        "model.{}.pt is missing, but {} is "
                        "there",
                        ranks.size(), io::base_name(path));
    ranks.push_back({path});
  }
  return grid;
}

}  // namespace ckpt::fairseq2
