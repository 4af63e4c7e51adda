// SPDX-License-Identifier: Apache-2.0
// Turns a rank's part into pieces of the whole tensor, without moving a byte.
//
//   rows, 2 ranks        gated rows                columns
//   | rank 0 |           | gate: rank 0 | rank 1 |  | 0 | 1 |
//   | rank 1 |           | up:   rank 0 | rank 1 |
//
// Likewise the parts of a mixer's input, which differ in size.
//
// Before checkpoint_version 2, each rank has the rows of query_key_value in
// another order; hn rows of np heads:
//   0   [q, k, v] [np] [hn]
//   1   [np] [hn] [q, k, v]
//   2   [np] [q, k, v] [hn]      what the pieces make of it
#pragma once

#include <cstdint>

#include "ckpt/catalog.h"
#include "formats/megatron/legacy/rank.h"
#include "lib/cuts.h"

namespace ckpt::megatron {

struct RowOrder {
  int version = 2;     // 0, 1, or 2: unchanged
  uint64_t parts = 3;  // q, k, v; 2 for key_value
  uint64_t heads = 0;  // on this rank
};

// Extents of the groups of a whole dimension; empty if they are equal.
using Groups = std::vector<uint64_t>;

// The whole shape, if `ranks` ranks have parts of shape `local`. Nothing if the
// rule does not fit the shape: a missing dimension, halves of an odd number,
// more than 64 bits.
std::optional<Shape> whole_shape(const Shape& local, const TpRule& rule,
                                 uint64_t ranks);

// The boxes of rank `slot`'s part.
std::vector<cuts::Part> cut_boxes(const Shape& whole, const TpRule& rule,
                                  uint64_t slot, uint64_t ranks,
                                  const Groups& groups = {});
Shape part_shape(const Shape& whole, const TpRule& rule, uint64_t ranks);

// Adds the pieces of rank `slot`'s part to a tensor with its whole shape.
void add_part(Tensor& tensor, const LocalTensor& part, const TpRule& rule,
              uint64_t slot, uint64_t ranks, const RowOrder& order = {},
              const Groups& groups = {});

// Bytes from element to element; a contiguous tensor's if the part has none.
Dims strides_of(const LocalTensor& part);

}  // namespace ckpt::megatron
