// SPDX-License-Identifier: Apache-2.0
// What encode() must know about every value before it writes the first one.
#pragma once

#include <unordered_map>
#include <vector>

#include "lib/pickle/value.h"

namespace ckpt::pickle {

// One number per value: an array if most values will get one, else a map.
class PerValue {
 public:
  PerValue(const Document& document, Id root, uint32_t initial)
      : initial_(initial) {
    constexpr size_t kSmall = size_t{1} << 12;
    if (root == document.root() || document.size() <= kSmall)
      array_.assign(document.size(), initial);
  }
  uint32_t& operator[](Id id) {
    return array_.empty() ? map_.try_emplace(id, initial_).first->second
                          : array_[id];
  }

 private:
  uint32_t initial_;
  std::vector<uint32_t> array_;
  std::unordered_map<Id, uint32_t> map_;
};

// The bits of a value's mark.
inline constexpr uint32_t kCount = 3;    // how often it is referenced, up to 2
inline constexpr uint32_t kOnPath = 4;   // its parts are being visited
inline constexpr uint32_t kReached = 8;  // it reaches itself

PerValue survey(const Document& document, Id root);

}  // namespace ckpt::pickle
