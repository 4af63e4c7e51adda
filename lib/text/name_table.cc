#include "lib/text/name_table.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <tuple>

namespace ckpt::text {
namespace {

// Hashes of honest names all differ, so the rest is hardly ever looked at.
bool before(const NameTable::Entry& a, const NameTable::Entry& b) {
  if (a.hash != b.hash) return a.hash < b.hash;
  return std::tie(a.name, a.id) < std::tie(b.name, b.id);
}

}  // namespace

void NameTable::add(std::string_view name, uint32_t id) {
  entries_.push_back({std::hash<std::string_view>()(name), name, id});
}

// By the first bits of the hash into about as many bins as there are names,
// then each bin by itself: an honest one has a name or two, and names that were
// chosen to share one are sorted as any others. Half the time of one sort.
void NameTable::sort() {
  const int shift = 63 - static_cast<int>(std::bit_width(entries_.size()));
  const auto bin = [shift](const Entry& e) { return e.hash >> 1 >> shift; };
  std::vector<uint32_t> ends((uint64_t{1} << (63 - shift)) + 1);
  for (const Entry& entry : entries_) ++ends[bin(entry) + 1];
  std::partial_sum(ends.begin(), ends.end(), ends.begin());
  std::vector<Entry> sorted(entries_.size());
  for (const Entry& entry : entries_) sorted[ends[bin(entry)]++] = entry;
  entries_ = std::move(sorted);
  // A lambda is inlined where a function is called through a pointer.
  const auto less = [](const Entry& a, const Entry& b) { return before(a, b); };
  uint32_t begin = 0;
  for (const uint32_t end : ends) {
    if (end - begin > 1)
      std::sort(entries_.begin() + begin, entries_.begin() + end, less);
    begin = end;
  }
}

std::span<const NameTable::Entry> NameTable::find(std::string_view name) const {
  const Entry wanted{std::hash<std::string_view>()(name), name, 0};
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
