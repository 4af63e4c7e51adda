// SPDX-License-Identifier: Apache-2.0
// Casts between floating-point types on the processor: the rules of numbers.h
// as loops, compiled once per instruction set. All give the same bits for an
// element wherever it is; the tests run every set that the processor has.
//
// A cast is a step to f32, a step from it, or both:
//
//   bf16 --widen--> 2,048 f32 in the first-level cache --narrow--> f16
//
// So each type needs two loops, and pairs need none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "ckpt/dtype.h"

namespace ckpt::reshard {

// f64, f32, f16, bf16 and the types of 8 bits.
bool is_float(DType dtype);

// Converts `count` elements. The ranges don't overlap and begin at any byte.
using CastStep = void (*)(const std::byte* in, std::byte* out, uint64_t count);

struct CastKernel {
  std::string_view name;
  // To f32 and back; null for f32. The bits of a NaN depend on its original
  // type.
  CastStep (*widen)(DType from);
  CastStep (*narrow)(DType from, DType to);

  // From one float type to another, `count` elements.
  void cast(DType from, DType to, const std::byte* in, std::byte* out,
            uint64_t count) const;
};

// The kernels that this processor can run, fastest last.
std::span<const CastKernel> usable_cast_kernels();
const CastKernel& best_cast_kernel();

}  // namespace ckpt::reshard
