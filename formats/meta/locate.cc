// SPDX-License-Identifier: Apache-2.0
#include "formats/meta/locate.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "ckpt/error.h"
#include "containers/hf/numbered.h"
#include "formats/meta/meta.h"
#include "lib/io/file.h"
#include "lib/lost_file.h"
#include "lib/text/number.h"

namespace ckpt::meta {
namespace {

constexpr std::string_view kStem = "consolidated.";
constexpr std::string_view kEnding = ".pth";

// The rank whose file has that name, spelled as Meta does, 00 to 99 and on.
std::optional<uint32_t> rank_of(std::string_view name) {
  if (!name.starts_with(kStem) || !name.ends_with(kEnding) ||
      name.size() < kStem.size() + 2 + kEnding.size())
    return std::nullopt;
  const std::string_view digits =
      name.substr(kStem.size(), name.size() - kStem.size() - kEnding.size());
  const auto rank = text::number<uint32_t>(digits);
  if (!rank || file_name(*rank) != name) return std::nullopt;
  return rank;
}

std::vector<uint32_t> ranks_in(const std::string& directory) {
  std::vector<uint32_t> ranks;
  for (const std::string& name : io::list_directory(directory))
    if (const auto rank = rank_of(name);
        rank && io::is_file(io::join(directory, name)))
      ranks.push_back(*rank);
  std::ranges::sort(ranks);
  return ranks;
}

// A Hugging Face directory may have Mistral's file, too; then it belongs to the
// other format.
bool is_one_file(const std::string& directory) {
  if (!io::is_file(io::join(directory, kOneFile)) ||
      !io::is_file(io::join(directory, kParams)))
    return false;
  const auto names = io::list_directory(directory);
  return std::ranges::none_of(names, [](const std::string& name) {
    return name.starts_with("model") &&
           name.find(".safetensors") != std::string::npos;
  });
}

}  // namespace

std::string file_name(uint32_t rank) {
  return fmt::format("{}{:02}{}", kStem, rank, kEnding);
}

formats::Support supports(const std::string& path) {
  if (!io::is_directory(path)) return {false, "not a directory"};
  if (const auto ranks = ranks_in(path); !ranks.empty())
    return {true, "holds " + file_name(ranks.front())};
  if (is_one_file(path))
    return {true, fmt::format("holds {} and {}", kOneFile, kParams)};
  return {false, "no consolidated.00.pth in it"};
}

std::vector<std::string> locate(const std::string& directory) {
  const std::vector<uint32_t> ranks = ranks_in(directory);
  if (ranks.empty() && io::is_file(io::join(directory, kOneFile)))
    return {std::string(kOneFile)};
  if (ranks.empty())
    throw missing_error({directory, {}}, "no consolidated.00.pth in it")
        .with_hint("a single .pth file is --from torch");
  std::vector<std::string> names, missing;
  for (const uint32_t rank : ranks) names.push_back(file_name(rank));
  constexpr size_t kEnough = 6;
  for (uint32_t r = 0; r < ranks.back() && missing.size() < kEnough; ++r)
    if (!std::ranges::binary_search(ranks, r)) missing.push_back(file_name(r));
  if (!missing.empty())
    throw LostFile(input_error({directory, {}},
                               "{} files are there, up to {}; missing: {}",
                               names.size(), names.back(),
                               formats::list_some(missing))
                       .with_hint("fetch the missing files"));
  return names;
}

}  // namespace ckpt::meta
