// SPDX-License-Identifier: Apache-2.0
#include "formats/fsdp/rank_files.h"

#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "lib/text/number.h"

namespace ckpt::fsdp {
namespace {

constexpr size_t kMostNumbers = 16;

using text::is_digit;

struct Split {
  std::string rest;  // the name with '#' for the number
  uint64_t number = 0;
};

// Splits at the number that has `after` other numbers after it.
std::optional<Split> split(std::string_view name, size_t after) {
  size_t end = name.size();
  for (size_t skipped = 0;; ++skipped) {
    while (end > 0 && !is_digit(name[end - 1])) --end;
    if (end == 0) return std::nullopt;
    size_t begin = end;
    while (begin > 0 && is_digit(name[begin - 1])) --begin;
    if (skipped < after) {
      end = begin;
      continue;
    }
    Split result{.rest = std::string(name.substr(0, begin)) + "#" +
                         std::string(name.substr(end)),
                 .number = 0};
    const auto [stop, failure] =
        std::from_chars(name.data() + begin, name.data() + end, result.number);
    if (failure != std::errc{} || stop != name.data() + end)
      return std::nullopt;
    return result;
  }
}

// Files that differ in nothing but the number `after` others: its values.
using Sets = std::map<std::string, std::set<uint64_t>>;

Sets sets_of(const std::vector<std::string>& names, size_t after) {
  Sets sets;
  for (const std::string& name : names) {
    const auto at = split(name, after);
    if (!at) return {};
    sets[at->rest].insert(at->number);
  }
  return sets;
}

std::vector<std::vector<std::string>> ranks_of(
    const std::vector<std::string>& names, size_t after) {
  std::map<std::string, std::map<uint64_t, std::string>> sets;
  for (const std::string& name : names) {
    const auto at = split(name, after);
    if (!at || !sets[at->rest].emplace(at->number, name).second) return {};
  }
  std::vector<std::vector<std::string>> ranks(
      sets.empty() ? 0 : sets.begin()->second.size());
  for (const auto& [rest, numbers] : sets) {
    if (numbers.size() != ranks.size() ||
        numbers.rbegin()->first + 1 != ranks.size())
      return {};
    for (const auto& [number, name] : numbers) ranks[number].push_back(name);
  }
  return ranks;
}

}  // namespace

std::vector<std::vector<std::string>> by_rank(
    const std::vector<std::string>& names) {
  std::vector<std::vector<std::string>> lone;
  for (size_t after = 0; after < kMostNumbers; ++after) {
    auto ranks = ranks_of(names, after);
    if (ranks.size() > 1) return ranks;
    if (lone.empty()) lone = std::move(ranks);
  }
  return lone;
}

std::vector<std::string> lost_of_ranks(const std::vector<std::string>& names) {
  for (size_t after = 0; after < kMostNumbers; ++after) {
    const Sets sets = sets_of(names, after);
    uint64_t ranks = 0;  // of the sets without a gap, which must agree
    bool agree = true;
    for (const auto& [rest, numbers] : sets) {
      if (*numbers.rbegin() + 1 != numbers.size()) continue;
      // One file with a 0: rank 0 may have written for all.
      if (numbers.size() < 2 || numbers.size() < ranks) continue;
      ranks = numbers.size();
    }
    std::vector<std::string> lost;
    for (const auto& [rest, numbers] : sets) {
      agree = agree && *numbers.rbegin() < ranks;
      if (numbers.size() == ranks || numbers == std::set<uint64_t>{0}) continue;
      for (uint64_t rank = 0; rank < ranks; ++rank)
        if (!numbers.contains(rank))
          lost.push_back(std::string(rest).replace(rest.find('#'), 1,
                                                   std::to_string(rank)));
    }
    if (agree && !lost.empty()) return lost;
  }
  return {};
}

}  // namespace ckpt::fsdp
