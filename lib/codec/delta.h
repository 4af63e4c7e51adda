// SPDX-License-Identifier: Apache-2.0
// Undoes numcodecs' Delta: restores elements from the differences of
// neighbours, added one by one in the elements' own type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::codec {

// True for pairs of types that can be undone: integers, or f32 and f64.
bool undoes(const Delta& delta);

// The size in bytes of the differences of `plain` bytes of elements; nullopt if
// these end inside an element.
std::optional<uint64_t> stored_size(const Delta& delta, uint64_t plain);

// Elements by offset; a read that goes backwards starts over.
class Undelta {
 public:
  // Reads bytes of the differences.
  using Read = std::function<void(uint64_t offset, std::span<std::byte>)>;

  // `plain`: bytes of all elements, as for stored_size.
  Undelta(const Delta& delta, uint64_t plain, Read read);

  void read(uint64_t offset, std::span<std::byte> buffer);
  uint64_t memory() const { return stored_.capacity() + plain_.capacity(); }

 private:
  void load();  // the next elements

  const Delta delta_;
  const uint64_t count_;  // of elements
  const Read read_;
  uint64_t next_ = 0;   // the first element not yet made
  uint64_t begin_ = 0;  // the first one in `plain_`
  uint64_t sum_ = 0;    // the last element made, as 64 bits
  std::vector<std::byte> stored_;
  std::vector<std::byte> plain_;
};

}  // namespace ckpt::codec
