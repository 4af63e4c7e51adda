// SPDX-License-Identifier: Apache-2.0
#include "formats/vllm/locate.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "ckpt/error.h"
#include "containers/hf/numbered.h"
#include "lib/io/file.h"
#include "lib/lost_file.h"
#include "lib/text/number.h"

namespace ckpt::vllm {
namespace {

constexpr std::string_view kRank = "model-rank-";
constexpr std::string_view kStage = "model-pp-";
constexpr std::string_view kPart = "-part-";

// How a pipeline's names say "rank"; the first is for names without a stage.
enum class Naming : uint8_t { kNoStage, kTp, kRank };

struct FileName {
  Naming naming = Naming::kNoStage;
  uint32_t stage = 0;
  uint32_t rank = 0;
  uint32_t part = 0;
};

std::string name_of(const FileName& file) {
  if (file.naming == Naming::kNoStage) return file_name(file.rank, file.part);
  return fmt::format("{}{}-{}-{}{}{}.safetensors", kStage, file.stage,
                     file.naming == Naming::kTp ? "tp" : "rank", file.rank,
                     kPart, file.part);
}

// Takes the number off the front of the text.
bool take_number(std::string_view& text, uint32_t& number) {
  const auto value = text::take_number(text, UINT32_MAX);
  if (value) number = static_cast<uint32_t>(*value);
  return value.has_value();
}

bool take_word(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

std::optional<FileName> parse(std::string_view name) {
  FileName parsed;
  std::string_view rest = name;
  if (take_word(rest, kStage)) {
    if (!take_number(rest, parsed.stage)) return std::nullopt;
    parsed.naming = rest.starts_with("-tp-") ? Naming::kTp : Naming::kRank;
    if (!take_word(rest, "-tp-") && !take_word(rest, "-rank-"))
      return std::nullopt;
  } else if (!take_word(rest, kRank)) {
    return std::nullopt;
  }
  if (!take_number(rest, parsed.rank) || !take_word(rest, kPart) ||
      !take_number(rest, parsed.part) || name_of(parsed) != name)
    return std::nullopt;
  return parsed;
}

// Stage, rank -> its parts, ascending.
struct Found {
  std::map<std::pair<uint32_t, uint32_t>, std::vector<uint32_t>> parts;
  std::optional<FileName> first;  // in directory order
  std::optional<FileName> other;  // one of another naming

  FileName file(std::pair<uint32_t, uint32_t> at, uint32_t part) const {
    return {first->naming, at.first, at.second, part};
  }
};

Found find(const std::string& directory) {
  Found found;
  for (const std::string& name : io::list_directory(directory)) {
    const auto file = parse(name);
    if (!file || !io::is_file(io::join(directory, name))) continue;
    if (!found.first) found.first = file;
    if (file->naming != found.first->naming) found.other = file;
    found.parts[{file->stage, file->rank}].push_back(file->part);
  }
  for (auto& [at, parts] : found.parts) std::ranges::sort(parts);
  return found;
}

// The stages and ranks that the names count up to; hostile numbers are large.
std::pair<uint64_t, uint64_t> grid_of(const Found& found) {
  uint64_t ranks = 0;
  for (const auto& [at, parts] : found.parts)
    ranks = std::max(ranks, uint64_t{at.second} + 1);
  return {uint64_t{found.parts.rbegin()->first.first} + 1, ranks};
}

// The first few that are missing. Walks no more than exist.
std::vector<std::string> missing_in(const Found& found) {
  constexpr size_t kEnough = 6;
  std::vector<std::string> missing;
  const auto [stages, ranks] = grid_of(found);
  for (uint64_t s = 0; s < stages && missing.size() < kEnough; ++s)
    for (uint64_t r = 0; r < ranks && missing.size() < kEnough; ++r) {
      const std::pair at(static_cast<uint32_t>(s), static_cast<uint32_t>(r));
      if (!found.parts.contains(at))
        missing.push_back(name_of(found.file(at, 0)));
    }
  for (const auto& [at, parts] : found.parts)
    for (uint32_t p = 0; p < parts.back() && missing.size() < kEnough; ++p)
      if (!std::ranges::binary_search(parts, p))
        missing.push_back(name_of(found.file(at, p)));
  return missing;
}

}  // namespace

std::string file_name(uint32_t rank, uint32_t part) {
  return fmt::format("{}{}{}{}.safetensors", kRank, rank, kPart, part);
}

formats::Support supports(const std::string& path) {
  if (!io::is_directory(path)) return {false, "not a directory"};
  const Found found = find(path);
  if (!found.first) return {false, "no model-rank-0-part-0.safetensors in it"};
  const auto& [at, parts] = *found.parts.begin();
  return {true, "holds " + name_of(found.file(at, parts.front()))};
}

std::vector<std::vector<Part>> locate(const std::string& directory) {
  const Found found = find(directory);
  if (!found.first)
    throw missing_error({directory, {}},
                        "no model-rank-0-part-0.safetensors in it");
  if (found.other)
    throw input_error({directory, {}}, "{} and {} are of two checkpoints",
                      name_of(*found.first), name_of(*found.other))
        .with_hint("move the files of one of them elsewhere");
  const std::vector<std::string> missing = missing_in(found);
  const auto [stages, ranks] = grid_of(found);
  if (!missing.empty())
    throw LostFile(input_error({directory, {}},
                               "{} ranks are there; missing: {}",
                               found.parts.size(), formats::list_some(missing))
                       .with_hint("fetch the missing files"));
  std::vector<std::vector<Part>> names(ranks);
  for (const auto& [at, parts] : found.parts)
    for (const uint32_t part : parts)
      names[at.second].push_back({name_of(found.file(at, part)), at.first});
  return names;
}

}  // namespace ckpt::vllm
