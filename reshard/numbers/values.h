// SPDX-License-Identifier: Apache-2.0
// Elements as numbers, whatever their type: for statistics, comparisons and
// for people. No module is needed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ckpt/dtype.h"

namespace ckpt::reshard {

// Floating-point, integer, bool and complex types, and quantized ones as the
// integers that they store. Not what is packed in bits.
bool has_values(DType dtype);

// Doubles that an element gives: 2 of a complex one (real, imaginary), else 1.
uint32_t doubles_of(DType dtype);

// `count` elements that begin at any byte. Exact but for integers of 64 bits
// above 2^53. `out` has room for count * doubles_of(dtype).
void to_doubles(DType dtype, const std::byte* in, uint64_t count, double* out);

}  // namespace ckpt::reshard
