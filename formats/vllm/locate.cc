// SPDX-License-Identifier: Apache-2.0
#include "formats/vllm/locate.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <utility>

#include "ckpt/error.h"
#include "containers/hf/numbered.h"
#include "lib/io/file.h"

namespace ckpt::vllm {
namespace {

constexpr std::string_view kRank = "model-rank-";
constexpr std::string_view kPart = "-part-";

struct FileName {
  uint32_t rank = 0;
  uint32_t part = 0;
};

std::optional<FileName> parse(std::string_view name) {
  if (!name.starts_with(kRank)) return std::nullopt;
  FileName parsed;
  const char* const end = name.data() + name.size();
  const auto rank =
      std::from_chars(name.data() + kRank.size(), end, parsed.rank);
  const std::string_view rest(rank.ptr, static_cast<size_t>(end - rank.ptr));
  if (rank.ec != std::errc() || !rest.starts_with(kPart)) return std::nullopt;
  const auto part = std::from_chars(rank.ptr + kPart.size(), end, parsed.part);
  if (part.ec != std::errc() || file_name(parsed.rank, parsed.part) != name)
    return std::nullopt;
  return parsed;
}

// Rank -> its parts, ascending.
using Found = std::map<uint32_t, std::vector<uint32_t>>;

Found find(const std::string& directory) {
  Found found;
  for (const std::string& name : io::list_directory(directory))
    if (const auto file = parse(name);
        file && io::is_file(io::join(directory, name)))
      found[file->rank].push_back(file->part);
  for (auto& [rank, parts] : found) std::ranges::sort(parts);
  return found;
}

// The first few that are missing; hostile numbers are large.
std::vector<std::string> missing_in(const Found& found) {
  constexpr size_t kEnough = 6;
  std::vector<std::string> missing;
  for (uint32_t r = 0; r < found.rbegin()->first && missing.size() < kEnough;
       ++r)
    if (!found.contains(r)) missing.push_back(file_name(r, 0));
  for (const auto& [rank, parts] : found)
    for (uint32_t p = 0; p < parts.back() && missing.size() < kEnough; ++p)
      if (!std::ranges::binary_search(parts, p))
        missing.push_back(file_name(rank, p));
  return missing;
}

}  // namespace

std::string file_name(uint32_t rank, uint32_t part) {
  return fmt::format("{}{}{}{}.safetensors", kRank, rank, kPart, part);
}

formats::Support supports(const std::string& path) {
  if (!io::is_directory(path)) return {false, "not a directory"};
  const Found found = find(path);
  if (found.empty()) return {false, "no model-rank-0-part-0.safetensors in it"};
  return {true, "holds " + file_name(found.begin()->first,
                                     found.begin()->second.front())};
}

std::vector<std::vector<std::string>> locate(const std::string& directory) {
  const Found found = find(directory);
  if (found.empty())
    throw missing_error({directory, {}},
                        "no model-rank-0-part-0.safetensors in it");
  const std::vector<std::string> missing = missing_in(found);
  if (!missing.empty())
    throw input_error({directory, {}}, "{} ranks are there; missing: {}",
                      found.size(), formats::list_some(missing))
        .with_hint("fetch the missing files");
  std::vector<std::vector<std::string>> names;
  for (const auto& [rank, parts] : found) {
    auto& files = names.emplace_back();
    for (const uint32_t part : parts) files.push_back(file_name(rank, part));
  }
  return names;
}

}  // namespace ckpt::vllm
