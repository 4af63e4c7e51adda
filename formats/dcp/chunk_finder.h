// SPDX-License-Identifier: Apache-2.0
// Finds the chunk of a tensor that begins at given offsets. Private to this
// room.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "formats/dcp/entries.h"

namespace ckpt::dcp {

class ChunkFinder {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // `tensors` and their chunks must not change while this is in use.
  explicit ChunkFinder(std::span<const TensorEntry> tensors)
      : tensors_(tensors) {}

  // Call some time before find(): makes the processor fetch the chunk.
  void prefetch(uint32_t tensor, uint64_t hint) const {
    const auto& chunks = tensors_[tensor].chunks;
    if (hint >= chunks.size()) return;
    __builtin_prefetch(&chunks[hint].box);
    __builtin_prefetch(&chunks[hint].stored, 1);
  }

  // `hint` is where torch says the chunk is, which is mostly right but proves
  // nothing. The hash table is only built when a hint is wrong: millions of
  // chunks need none.
  uint32_t find(uint32_t tensor, const Dims& offsets, uint64_t hint) {
    const auto& chunks = tensors_[tensor].chunks;
    if (hint < chunks.size() && chunks[hint].box.offset == offsets)
      return static_cast<uint32_t>(hint);
    return look_up(tensor, offsets);
  }

 private:
  struct Slot {
    uint32_t tensor = kNone;
    uint32_t chunk = kNone;
  };
  uint32_t look_up(uint32_t tensor, const Dims& offsets);
  void build();

  std::span<const TensorEntry> tensors_;
  std::vector<Slot> slots_;  // open addressing; the first of equals wins
};

}  // namespace ckpt::dcp
