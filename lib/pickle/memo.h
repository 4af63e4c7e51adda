// SPDX-License-Identifier: Apache-2.0
// The unpickler's memo. Indices are dense in practice but may be anything:
// those far out go into a hash map.
#pragma once

#include <unordered_map>

#include "lib/pickle/buffer.h"
#include "lib/pickle/value.h"

namespace ckpt::pickle {

// Represents the dict of a record in the memo; never used.
inline constexpr Id kNotKept = kNoId - 1;

class Memo {
 public:
  uint64_t size() const { return count_; }  // indices in use

  Id get(uint64_t index) const {
    if (index < dense_.size()) return dense_[index];
    const auto found = wild_.find(index);
    return found == wild_.end() ? kNoId : found->second;
  }

  void put(uint64_t index, Id value) {
    if (index == dense_.size() && wild_.empty()) {  // MEMOIZE, nearly always
      dense_.push_back(value);
      ++count_;
      return;
    }
    Id& slot = slot_at(index);
    if (slot == kNoId) ++count_;
    slot = value;
  }

 private:
  Id& slot_at(uint64_t index) {
    // Sparse indices may waste at most a page.
    if (index < dense_.size() + 1024) {
      while (dense_.size() <= index) dense_.push_back(take(dense_.size()));
      return dense_[index];
    }
    const auto [at, fresh] = wild_.try_emplace(index, kNoId);
    if (fresh) charge_.add(kWild);
    return at->second;
  }

  // Takes what was stored far out before the dense part reached it.
  Id take(uint64_t index) {
    if (wild_.empty()) return kNoId;
    const auto found = wild_.find(index);
    if (found == wild_.end()) return kNoId;
    const Id value = found->second;
    wild_.erase(found);
    return value;
  }

  static constexpr uint64_t kWild = 48;  // a node of the map, and its bucket

  Buffer<Id> dense_;
  std::unordered_map<uint64_t, Id> wild_;
  uint64_t count_ = 0;
  tree_memory::Charge charge_;
};

}  // namespace ckpt::pickle
