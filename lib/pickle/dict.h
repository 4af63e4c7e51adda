// SPDX-License-Identifier: Apache-2.0
// Keys of dicts, compared and hashed as Python does: 1, 1.0 and True are one
// key; "1" and b"1" are two. Three shortcuts bound the cost of hostile keys,
// and make no difference for any dict that Python wrote: opaque objects, tuples
// of more than 16 elements (and tuples in tuples) and texts over 64 KiB are
// equal only to themselves.
#pragma once

#include <unordered_map>
#include <vector>

#include "lib/pickle/value.h"

namespace ckpt::pickle {

inline constexpr size_t kLongestKey = size_t{1} << 16;
// Equal texts up to this size are one value in a document. Longer ones are
// rarely repeated, and comparing them would cost more.
inline constexpr size_t kLongestShared = 64;

// splitmix64's output function.
uint64_t mix(uint64_t x);
uint64_t hash_text(Type type, std::string_view text);

// Finds small numbers (positions of keys, ids of texts) by hash: open
// addressing, linear probing.
struct Document::Index {
  struct Slot {
    uint32_t hash = 0;
    uint32_t position = kNoId;  // of the key in items()
  };
  std::vector<Slot> slots;  // a power of two, at most half full
  size_t used = 0;
  // All keys are calls, each created after the one before, like the million
  // keys of a large .metadata. No two are equal, so the slots are empty; `last`
  // is the last of them.
  bool ascending = true;
  Id last = 0;
  // True if that also holds with this key.
  bool ascends(Type type, Id key);

  void insert(uint32_t hash, uint32_t position, tree_memory::Charge& charge);
  // Calls same(position) for every key with this hash until one matches.
  template <class Same>
  uint32_t find(uint32_t hash, Same same) const {
    if (slots.empty()) return kNoId;
    const size_t mask = slots.size() - 1;
    for (size_t i = hash & mask; slots[i].position != kNoId;
         i = (i + 1) & mask) {
      if (slots[i].hash == hash && same(slots[i].position))
        return slots[i].position;
    }
    return kNoId;
  }

 private:
  void place(Slot slot);
};

}  // namespace ckpt::pickle
