// SPDX-License-Identifier: Apache-2.0
// A box as runs of its tensor's row-major elements.
//
//   tensor [4, 6], box [2, 3] at [1, 2]:   [8, 11)  [14, 17)
//   tensor [4, 6], box [2, 6] at [1, 0]:   [6, 18)
#pragma once

#include <cstdint>

#include "ckpt/box.h"

namespace ckpt::olmo_core::v1 {

// One less than the dimension from which a box has everything: each run is
// contiguous in it and below.
inline size_t run_dim(const Box& box, const Shape& shape) {
  size_t d = shape.size() - 1;
  while (d > 0 && box.shape[d] == shape[d]) --d;
  return d;
}

// The number of runs. The box must be inside, and not empty.
inline uint64_t row_count(const Box& box, const Shape& shape) {
  if (shape.empty()) return 1;
  uint64_t count = 1;
  for (size_t d = 0; d < run_dim(box, shape); ++d) count *= box.shape[d];
  return count;
}

// Calls add(FlatRange) for each run, in order.
template <class Add>
void each_row(const Box& box, const Shape& shape, Add add) {
  if (shape.empty()) return add(FlatRange{0, 1});
  const Dims strides = row_major_strides(shape);
  const size_t last = run_dim(box, shape);
  const uint64_t length = box.shape[last] * strides[last];
  Dims index(last, 0);
  while (true) {
    uint64_t begin = box.offset[last] * strides[last];
    for (size_t d = 0; d < last; ++d)
      begin += (box.offset[d] + index[d]) * strides[d];
    add(FlatRange{begin, begin + length});
    size_t d = last;
    while (d > 0 && ++index[d - 1] == box.shape[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

}  // namespace ckpt::olmo_core::v1
