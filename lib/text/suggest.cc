// SPDX-License-Identifier: Apache-2.0
#include "lib/text/suggest.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace ckpt::text {
namespace {

constexpr size_t kLongest = 256;  // longer names are not typing mistakes

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

// Levenshtein distance, whatever the case, with one row of the table.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (lower(a[i]) != lower(b[j]));
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest(std::string_view name,
                    const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = SIZE_MAX;
  for (const std::string& candidate : candidates) {
    const size_t longer = std::max(name.size(), candidate.size());
    if (longer > kLongest) continue;
    const size_t distance = edit_distance(name, candidate);
    if (distance > longer / 3 || distance >= best_distance) continue;
    best_distance = distance;
    best = candidate;
  }
  return best;
}

std::string nearest_ending(std::string_view name,
                           const std::vector<std::string>& candidates) {
  constexpr size_t kEnough = 8;  // "q.weight"
  std::string_view best;
  size_t longest = kEnough;
  for (const std::string& one : candidates) {
    const auto differs =
        std::mismatch(one.rbegin(), one.rend(), name.rbegin(), name.rend());
    const auto alike = static_cast<size_t>(differs.first - one.rbegin());
    if (alike > longest) {
      longest = alike;
      best = one;
    }
  }
  return best.empty() ? nearest(name, candidates) : std::string(best);
}

}  // namespace ckpt::text
