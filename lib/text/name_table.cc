// SPDX-License-Identifier: Apache-2.0
#include "lib/text/name_table.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <tuple>

namespace ckpt::text {
namespace {

// The hashes of honest names all differ, so the rest is hardly ever compared.
bool before(const NameTable::Entry& a, const NameTable::Entry& b) {
  if (a.hash != b.hash) return a.hash < b.hash;
  return std::tie(a.name, a.id) < std::tie(b.name, b.id);
}

// Sorts by the first bits of the hash into about as many bins as values, then
// each bin by itself. An honest bin has a value or two, and names chosen to
// share one are sorted like any others. Takes half the time of one sort.
template <class T, class Hash, class Less>
void sort_by_bins(std::vector<T>& values, Hash hash, Less less) {
  const int shift = 63 - static_cast<int>(std::bit_width(values.size()));
  const auto bin = [&](const T& value) {
    return std::invoke(hash, value) >> 1 >> shift;
  };
  std::vector<uint32_t> ends((uint64_t{1} << (63 - shift)) + 1);
  for (const T& value : values) ++ends[bin(value) + 1];
  std::partial_sum(ends.begin(), ends.end(), ends.begin());
  std::vector<T> sorted(values.size());
  for (const T& value : values) sorted[ends[bin(value)]++] = value;
  values = std::move(sorted);
  uint32_t begin = 0;
  for (const uint32_t end : ends) {
    if (end - begin > 1)
      std::sort(values.begin() + begin, values.begin() + end, less);
    begin = end;
  }
}

}  // namespace

uint64_t hash_of(std::string_view name) {
  return std::hash<std::string_view>()(name);
}

bool may_repeat(std::vector<uint64_t> hashes) {
  sort_by_bins(hashes, std::identity(), std::less());
  return std::ranges::adjacent_find(hashes) != hashes.end();
}

void NameTable::add(std::string_view name, uint32_t id) {
  entries_.push_back({hash_of(name), name, id});
}

void NameTable::sort() {
  // A lambda is inlined, but a function would be called through a pointer.
  sort_by_bins(entries_, &Entry::hash,
               [](const Entry& a, const Entry& b) { return before(a, b); });
}

std::span<const NameTable::Entry> NameTable::find(std::string_view name) const {
  const Entry wanted{hash_of(name), name, 0};
  const auto first =
      std::lower_bound(entries_.begin(), entries_.end(), wanted, before);
  auto last = first;
  while (last != entries_.end() && last->hash == wanted.hash &&
         last->name == name)
    ++last;
  return {first, last};
}

std::optional<NameTable::Twice> NameTable::duplicate() const {
  std::optional<Twice> found;
  for (size_t i = 1; i < entries_.size(); ++i) {
    const Entry& a = entries_[i - 1];
    const Entry& b = entries_[i];
    if (a.hash != b.hash || a.name != b.name) continue;
    if (!found || b.id < found->second) found = {a.name, a.id, b.id};
  }
  return found;
}

}  // namespace ckpt::text
