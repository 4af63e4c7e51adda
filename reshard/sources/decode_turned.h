// SPDX-License-Identifier: Apache-2.0
// 4-bit codes of a transposed weight, to elements of 2 bytes: 32 natural rows
// at once, which are 64 bytes of each of the weight's rows. Nothing is
// computed: each element is looked up by its code, in a table of 16 that the
// slower loops made.
//
//   32 rows x 8 columns of codes ─► turned as bytes ─► two look-ups of bytes
//
// Transposing codes moves a quarter of the bytes that transposing elements
// does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace ckpt::reshard {

inline constexpr uint64_t kTurnedRows = 32;
inline constexpr uint64_t kTableBytes = 32;  // of 16 elements of 2 bytes

// Stored codes, with `stride` bytes from row to row. A column's elements go to
// out + column * by_column.
struct Turned {
  const std::byte* codes;
  uint64_t stride;
  uint64_t columns;
  std::byte* out;
  uint64_t by_column;
};

struct TurnedKernel {
  std::string_view name;
  // 16 elements of each column, as the others look them up: in 256 bits 16 low
  // bytes, 16 high ones.
  void (*split)(std::byte* tables, uint64_t columns);
  // Four rows of words of eight rows each; columns in fours.
  void (*gptq)(const Turned& part, const std::byte* tables);
  // Words of eight columns; columns in thirty-twos.
  void (*awq)(const Turned& part, const std::byte* tables);
  // Pairs of e2m1; columns in thirty-twos, each with 32 `powers`: what is
  // added to the bits of a bf16 for its row's scale.
  void (*e2m1)(const Turned& part, const int16_t* powers);
};

// The kernels that this processor can run, best last.
std::span<const TurnedKernel> usable_turned_kernels();
// The best kernel; null if this processor has none.
const TurnedKernel* turned_kernel();

}  // namespace ckpt::reshard
