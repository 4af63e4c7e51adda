// SPDX-License-Identifier: Apache-2.0
// Numbered names, for lookups and duplicates among 10^5 names that may be
// hostile: sorted by hash, then by name, so that names chosen to collide cost
// comparisons but not quadratic time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace ckpt::text {

uint64_t hash_of(std::string_view name);
// False if all names differ, given their hashes (hash_of). True: two may be the
// same, and a NameTable tells which. Takes a quarter of a table's memory.
bool may_repeat(std::vector<uint64_t> hashes);

class NameTable {
 public:
  struct Entry {
    uint64_t hash;
    std::string_view name;  // not copied
    uint32_t id;
  };

  void reserve(size_t count) { entries_.reserve(count); }
  void add(std::string_view name, uint32_t id);
  // Call it after the last add, before anything below.
  void sort();

  // The entries of a name, by id; empty if it is absent.
  std::span<const Entry> find(std::string_view name) const;
  // Two entries with one name, those with the smallest second id; or nullopt if
  // all names are unique.
  struct Twice {
    std::string_view name;
    uint32_t first;
    uint32_t second;
  };
  std::optional<Twice> duplicate() const;

 private:
  std::vector<Entry> entries_;
};

}  // namespace ckpt::text
