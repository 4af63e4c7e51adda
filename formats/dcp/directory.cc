// SPDX-License-Identifier: Apache-2.0
#include "formats/dcp/directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "ckpt/error.h"
#include "formats/dcp/hf.h"
#include "lib/io/file.h"
#include "lib/text/number.h"

namespace ckpt::dcp {
namespace {

constexpr std::string_view kIndex = ".metadata";
constexpr std::string_view kStarted = ".metadata.tmp";
constexpr std::string_view kData = ".distcp";
constexpr std::string_view kIteration = "iter";
constexpr std::string_view kTracker = "latest_checkpointed_iteration.txt";

// True if another writer, with its own reader, left its mark: Megatron's
// metadata.json, OLMo-core's .metadata.json.
bool is_foreign(const std::string& path) {
  return io::is_file(io::join(path, "metadata.json")) ||
         io::is_file(io::join(path, ".metadata.json"));
}

struct Step {
  std::string word;
  uint64_t number = 0;
};

// step-1000, step_1000, step=1000, step1000, …; Megatron's iter_0001000, of
// --ckpt-format torch_dcp.
std::optional<Step> step_of(std::string_view name) {
  constexpr auto kWords = std::to_array<std::string_view>(
      {"step", "global_step", "checkpoint", "ckpt", "epoch", kIteration});
  for (const std::string_view word : kWords) {
    if (!name.starts_with(word)) continue;
    std::string_view rest = name.substr(word.size());
    if (!rest.empty() && std::string_view("-_=").find(rest[0]) != rest.npos)
      rest.remove_prefix(1);
    if (const auto value = text::number(rest))
      return Step{std::string(word), *value};
  }
  return std::nullopt;
}

void look_for_shards(Directory& directory) {
  for (const std::string& below : {std::string(), std::string("sharded")}) {
    const std::string path =
        below.empty() ? directory.path : io::join(directory.path, below);
    if (!below.empty() && !io::is_directory(path)) return;
    directory.shards = find_shards(path);
    if (directory.shards.empty()) continue;
    directory.path = path;
    return;
  }
}

// The iteration that Megatron would continue with.
std::optional<uint64_t> tracked(const std::string& path) {
  constexpr uint64_t kMost = 64;
  const std::string file = io::join(path, kTracker);
  if (io::file_size(file).value_or(kMost + 1) > kMost) return std::nullopt;
  std::string word = io::read_file(file, kMost);
  while (!word.empty() && (word.back() == '\n' || word.back() == ' '))
    word.pop_back();
  return text::number(word);
}

}  // namespace

std::optional<uint32_t> rank_of(std::string_view name) {
  if (!name.starts_with("__")) return std::nullopt;
  name.remove_prefix(2);
  const size_t digits =
      std::min(name.find_first_not_of("0123456789"), name.size());
  const auto rank = text::number(name.substr(0, digits));
  if (!rank || *rank >= UINT32_MAX) return std::nullopt;
  return static_cast<uint32_t>(*rank);
}

bool is_part_name(const std::string& path) {
  const std::string name = io::base_name(path);
  return name == kIndex ||
         (rank_of(name) && (name.ends_with(kIndex) || name.ends_with(kData)));
}

Directory look_at(const std::string& path) {
  Directory directory;
  directory.path = path;
  for (std::string& name : io::list_directory(path)) {
    if (name == kIndex)
      directory.whole = io::is_file(io::join(path, name));
    else if (name.ends_with(kStarted))
      directory.started.push_back(std::move(name));
    else if (name.ends_with(kData))
      directory.distcps.push_back(std::move(name));
    else if (name.ends_with(kIndex) && rank_of(name))
      directory.ranks.push_back(std::move(name));
  }
  std::ranges::sort(directory.ranks, {},
                    [](const std::string& name) { return *rank_of(name); });
  if (!directory.is_ours()) look_for_shards(directory);
  return directory;
}

std::string megatron_sign(const std::string& directory) {
  // At each end of the index, as it may be large.
  constexpr uint64_t kSearched = uint64_t{1} << 20;
  constexpr const char* kCommonPart = "common.pt";
  const std::string index = io::join(directory, kIndex);
  if (!io::is_file(index)) return {};
  if (io::is_file(io::join(directory, kCommonPart))) return kCommonPart;
  const io::Handle file = io::Handle::open_read(index);
  const uint64_t part = std::min(file.size(), kSearched);
  for (const uint64_t at : {uint64_t{0}, file.size() - part}) {
    const std::string text = file.read_string(at, part);
    for (const char* sign :
         {"MCoreMetadata", "mcore_data", "MCoreSavePlan", "common_state/shard_",
          "_extra_state/shard_", "rng_state/shard_"})
      if (text.find(sign) != text.npos)
        return fmt::format("{} in .metadata", sign);
  }
  return {};
}

std::optional<Followed> follow(const std::string& path) {
  std::map<std::string, std::map<uint64_t, std::string>> complete;
  std::map<uint64_t, std::string> unfinished;
  for (const std::string& name : io::list_directory(path)) {
    const auto step = step_of(name);
    const std::string below = io::join(path, name);
    if (!step || !io::is_directory(below) || is_foreign(below)) continue;
    // (Listing tens of thousands of files in each of many steps takes long.)
    const bool whole = io::is_file(io::join(below, kIndex));
    if (whole && step->word == kIteration && !megatron_sign(below).empty())
      continue;
    const Directory directory = whole ? Directory() : look_at(below);
    if (whole || directory.is_checkpoint())
      complete[step->word][step->number] = name;
    else if (directory.is_ours())
      unfinished[step->number] = name;
  }
  if (complete.empty() && unfinished.empty()) return std::nullopt;
  Followed followed;
  followed.mixed = complete.size() > 1;
  uint64_t newest = 0;
  if (!complete.empty()) {
    const auto& steps = complete.begin()->second;
    auto chosen = std::prev(steps.end());
    if (complete.begin()->first == kIteration)
      if (const auto named = tracked(path); named && steps.contains(*named))
        chosen = steps.find(*named);
    newest = chosen->first;
    followed.name = chosen->second;
  }
  // Unfinished steps before the newest complete one don't matter.
  for (const auto& [at, name] : unfinished)
    if (complete.empty() || at >= newest) followed.unfinished.push_back(name);
  return followed;
}

}  // namespace ckpt::dcp
