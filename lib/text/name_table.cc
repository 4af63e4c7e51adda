#include "lib/text/name_table.h"

#include <algorithm>
#include <functional>
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

void NameTable::sort() {
  // A lambda is inlined where a function is called through a pointer.
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return before(a, b); });
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
