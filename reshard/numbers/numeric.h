// SPDX-License-Identifier: Apache-2.0
// How far two tensors are apart. Sums are of doubles; their last digits depend
// on how many threads added them up.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ckpt/dtype.h"

namespace ckpt::reshard {

// Two elements agree where |a - b| <= atol + rtol * |b|, where both are NaN
// and where they are equal.
struct Comparison {
  double max_abs = 0;  // inf if only one of a pair is finite
  double max_rel = 0;  // |a - b| / |b|
  uint64_t count = 0;
  uint64_t mismatches = 0;
  uint64_t first_mismatch = 0;  // which element; if there are mismatches
  // Sums over the elements that are finite on both sides, for norms and the
  // angle. One that only one side has makes the first infinite.
  double squares = 0;  // of a - b; both parts of a complex number count
  double squares_a = 0, squares_b = 0;
  double products = 0;  // of a and b

  // Adds the result of the elements that follow.
  Comparison& operator+=(const Comparison& later);
};

void add_comparison(DType dtype_a, const std::byte* a, DType dtype_b,
                    const std::byte* b, uint64_t count, double rtol,
                    double atol, Comparison& comparison);

}  // namespace ckpt::reshard
