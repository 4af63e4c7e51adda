// SPDX-License-Identifier: Apache-2.0
// numcodecs' Delta, undone: elements from differences of neighbours, which are
// added one by one in the elements' own type.
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

// The bytes of the differences of so many bytes of elements; nothing if an
// element ends in the middle.
std::optional<uint64_t> stored_size(const Delta& delta, uint64_t plain);

// Elements by offset; a read that goes backwards starts over.
class Undelta {
 public:
  // Gives bytes of the differences.
  using Read = std::function<void(uint64_t offset, std::span<std::byte>)>;

  // `plain`: bytes of all elements, as stored_size takes them.
  Undelta(const Delta& delta, uint64_t plain, Read read);

  void read(uint64_t offset, std::span<std::byte> buffer);
  uint64_t memory() const { return stored_.capacity() + plain_.capacity(); }

 private:
  void load();  // the next elements

  const Delta delta_;
  const uint64_t count_;  // of elements
  const Read read_;
  uint64_t next_ = 0;   // the first element that was not made
  uint64_t begin_ = 0;  // the first one in `plain_`
  uint64_t sum_ = 0;    // the last element that was made, as 64 bits
  std::vector<std::byte> stored_;
  std::vector<std::byte> plain_;
};

}  // namespace ckpt::codec
