// SPDX-License-Identifier: Apache-2.0
#include "containers/hf/numbered.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "ckpt/error.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::formats {

using text::printable;

std::optional<NumberedName> parse_numbered(std::string_view name) {
  constexpr std::string_view kOf = "-of-";
  const size_t of = name.rfind(kOf);
  if (of == name.npos || of == 0) return std::nullopt;
  const size_t dash = name.rfind('-', of - 1);
  if (dash == name.npos || dash == 0) return std::nullopt;
  const std::string_view number = name.substr(dash + 1, of - dash - 1);
  const std::string_view after = name.substr(of + kOf.size());
  const size_t digits =
      std::min(after.find_first_not_of("0123456789"), after.size());

  NumberedName parsed{.stem = std::string(name.substr(0, dash)),
                      .rest = std::string(after.substr(digits))};
  const auto at = text::number<uint32_t>(number);
  const auto count = text::number<uint32_t>(after.substr(0, digits));
  if (!at || !count) return std::nullopt;
  parsed.number = *at;
  parsed.count = *count;
  return parsed;
}

std::string numbered_name(std::string_view stem, uint64_t number,
                          uint64_t count, std::string_view rest) {
  return fmt::format("{}-{:05}-of-{:05}{}", stem, number, count, rest);
}

namespace {

// The names of a set that `numbers` (sorted) lacks: only the first few, because
// a hostile count can be large. Numbers begin at `first`.
std::vector<std::string> missing_of(const NumberedName& set, uint32_t first,
                                    std::span<const uint32_t> numbers) {
  constexpr size_t kEnough = 5;
  std::vector<std::string> missing;
  for (uint32_t i = 0; i < set.count && missing.size() < kEnough; ++i)
    if (!std::ranges::binary_search(numbers, first + i))
      missing.push_back(
          numbered_name(set.stem, first + i, set.count, set.rest));
  return missing;
}

void check_complete(const std::string& directory, const NumberedName& set,
                    std::vector<uint32_t> numbers) {
  std::ranges::sort(numbers);
  const uint32_t first = numbers.front() == 0 ? 0 : 1;
  const auto missing = missing_of(set, first, numbers);
  if (!missing.empty())
    throw input_error({directory, {}}, "files of a set of {} are missing: {}{}",
                      set.count, list_some(missing),
                      numbers.size() + missing.size() < set.count ? " …" : "")
        .with_hint("fetch the missing files, or open the files one by one");
  if (numbers.size() != set.count)
    throw input_error({directory, {}}, "{} files are numbered as {}-x-of-{}{}",
                      numbers.size(), printable(set.stem), set.count,
                      printable(set.rest))
        .with_hint("remove what is left of an older checkpoint");
}

}  // namespace

std::vector<std::string> numbered_set(std::span<const std::string> names,
                                      std::string_view stem,
                                      std::string_view rest) {
  std::vector<std::string> set;
  for (const std::string& name : names) {
    const auto numbered = parse_numbered(name);
    if (numbered && numbered->stem == stem && numbered->rest == rest)
      set.push_back(name);
  }
  return set;
}

void check_complete_sets(const std::string& directory,
                         std::span<const std::string> names) {
  using Set = std::tuple<std::string, uint32_t, std::string>;
  std::map<Set, std::vector<uint32_t>> sets;
  for (const std::string& name : names)
    if (const auto parsed = parse_numbered(name))
      sets[{parsed->stem, parsed->count, parsed->rest}].push_back(
          parsed->number);
  for (auto& [set, numbers] : sets) {
    const auto& [stem, count, rest] = set;
    check_complete(directory, {stem, 0, count, rest}, std::move(numbers));
  }
}

std::string list_some(std::span<const std::string> names) {
  constexpr size_t kShown = 5;
  std::string list;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i)
    list += (i ? ", " : "") + printable(names[i]);
  if (names.size() > kShown)
    list += fmt::format(" and {} more", names.size() - kShown);
  return list;
}

}  // namespace ckpt::formats
