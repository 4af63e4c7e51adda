// SPDX-License-Identifier: Apache-2.0
// From codes to numbers, a line at a time in f32: loops compiled once per
// instruction set, as for casts (cast_kernel.h). All give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "reshard/numbers/cast_kernel.h"

namespace ckpt::reshard {

struct DecodeKernel {
  std::string_view name;
  // One code a byte, as an integer.
  void (*from_i8)(const std::byte* in, float* out, uint64_t count);
  void (*from_u8)(const std::byte* in, float* out, uint64_t count);
  // `count` half bytes of e2m1, the lower half first.
  void (*from_e2m1)(const std::byte* in, float* out, uint64_t count);
  // (word >> shift) & mask of each word.
  void (*from_words)(const uint32_t* in, uint32_t shift, uint32_t mask,
                     float* out, uint64_t count);
  // Eight codes of four bits from each word, in AWQ's order.
  void (*from_awq)(const uint32_t* in, float* out, uint64_t words);
  // x = (x - zero) * scale, with one scale for all elements or one each.
  void (*scale)(float* x, float zero, float scale, uint64_t count);
  void (*scale_each)(float* x, const float* zeros, const float* scales,
                     uint64_t count);
  // The largest bit pattern without its sign: that of the largest magnitude, or
  // of an infinity or a NaN if there is one.
  uint32_t (*largest)(const float* x, uint64_t count);
  // The same for bf16, as bits of an f32.
  uint32_t (*largest_bf16)(const std::byte* in, uint64_t count);
  // e4m3 of x * scale, where no product rounds to more than 448.
  void (*bf16_to_e4m3)(const std::byte* in, float scale, std::byte* out,
                       uint64_t count);
};

// The kernels that this processor can run, in the order of
// usable_cast_kernels().
std::span<const DecodeKernel> usable_decode_kernels();
const DecodeKernel& best_decode_kernel();

}  // namespace ckpt::reshard
