// SPDX-License-Identifier: Apache-2.0
// Pieces as the planner sees them: plain boxes of elements with byte strides,
// flat ranges cut into boxes, replicas recognized.
#pragma once

#include <cstdint>
#include <vector>

#include "ckpt/catalog.h"
#include "reshard/plan/plan.h"

namespace ckpt::reshard {

struct Placed {
  Box box = {};         // elements
  Dims strides = {};    // bytes, one for each dimension
  uint64_t offset = 0;  // bytes, of the box's first element
  uint32_t file = kNone;
  uint32_t piece = 0;  // index in Tensor::pieces
  uint8_t transform = kNoTransform;
  uint32_t check = kNone;  // digest slot of the piece, if it has replicas
  bool primary = true;     // false: the same elements are in another piece
};

// A tensor's dimensions, counted in bytes. Bit-packed types and tensors of
// single bytes become a row of bytes.
struct Grid {
  Shape shape;
  uint64_t element = 1;  // bytes
};
Grid grid_of(DType dtype, const Shape& shape);

// The space that the boxes of a tensor's pieces count in: its grid, or its
// shape.
const Shape& space_of(const Tensor& tensor);

// A box of a tensor of that shape in the factors of its grid (Tensor::grid).
std::vector<Placed> refine(const Placed& placed, const Shape& shape,
                           const Shape& grid);

// The boxes of a tensor's pieces, without empty ones. Throws if a piece leaves
// the tensor or splits a bit-packed element.
std::vector<Placed> place(const Tensor& tensor, const std::string& path);

// For each piece: the index of the first piece that holds the same elements.
std::vector<uint32_t> first_of_equals(const Tensor& tensor);

}  // namespace ckpt::reshard
