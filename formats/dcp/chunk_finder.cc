// SPDX-License-Identifier: Apache-2.0
#include "formats/dcp/chunk_finder.h"

#include <bit>

namespace ckpt::dcp {
namespace {

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

uint64_t hash(uint32_t tensor, const Dims& offsets) {
  uint64_t hash = mix(tensor + 1);
  for (const uint64_t offset : offsets)
    hash = mix(hash * 0x9E3779B97F4A7C15u + offset);
  return hash;
}

}  // namespace

uint32_t ChunkFinder::look_up(uint32_t tensor, const Dims& offsets) {
  if (slots_.empty()) build();
  const size_t mask = slots_.size() - 1;
  for (size_t i = hash(tensor, offsets) & mask; slots_[i].chunk != kNone;
       i = (i + 1) & mask) {
    const Slot slot = slots_[i];
    if (slot.tensor == tensor &&
        tensors_[tensor].chunks[slot.chunk].box.offset == offsets)
      return slot.chunk;
  }
  return kNone;
}

void ChunkFinder::build() {
  uint64_t count = 0;
  for (const TensorEntry& tensor : tensors_) count += tensor.chunks.size();
  slots_.resize(std::bit_ceil(2 * count + 1));
  const size_t mask = slots_.size() - 1;
  for (uint32_t t = 0; t < tensors_.size(); ++t) {
    const auto& chunks = tensors_[t].chunks;
    for (uint32_t c = 0; c < chunks.size(); ++c) {
      size_t i = hash(t, chunks[c].box.offset) & mask;
      bool known = false;
      for (; slots_[i].chunk != kNone && !known; i = (i + 1) & mask) {
        const Slot slot = slots_[i];
        known = slot.tensor == t &&
                chunks[slot.chunk].box.offset == chunks[c].box.offset;
      }
      if (!known) slots_[i] = {t, c};
    }
  }
}

}  // namespace ckpt::dcp
