// SPDX-License-Identifier: Apache-2.0
// Steps of a sum in f32, as peft makes it. Each is a pass of its own over
// memory: a compiler that fused two of them into one fma would omit a rounding
// that peft has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "ckpt/dtype.h"

namespace ckpt::reshard {

void scale_all(float* x, uint64_t count, float by);
void add_all(float* x, const float* y, uint64_t count);
void scale_each(float* x, const float* y, uint64_t count);

// Rounds to a floating-point dtype.
void narrow_sum(DType dtype, const float* in, std::byte* out, uint64_t count);

// Where a tile's sums are in their tensor.
struct SumPlace {
  const std::string& tensor;
  DType dtype;
  uint64_t row, column, columns;
};
// Throws unfaithful_error for a sum that the dtype can't hold, where the base
// is finite: those of the base are not the adapter's fault.
void check_sums(std::span<const float> sums, std::span<const float> base,
                const SumPlace& place);

}  // namespace ckpt::reshard
