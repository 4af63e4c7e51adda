// SPDX-License-Identifier: Apache-2.0
// Joins the ranks' tensors into whole ones.
//
//   sdp_00 ┐ rows                     tp_00 ┐ dim
//   sdp_01 ┼──────► tp-local tensor   tp_01 ┼──────► global tensor
//   sdp_02 ┘                          …     ┘
//
// A rank without rows has an empty tensor of any shape and dtype, or none.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/fairseq2/layout.h"

namespace ckpt::fairseq2 {

// The part of a tensor in one rank's file.
struct Part {
  uint32_t tp = 0;
  uint32_t dp = 0;
  DType dtype = DType::f32;
  Shape shape;
  Extent extent;
  uint8_t transform = kNoTransform;
};

// How the data-parallel ranks share a tp-local tensor.
enum class Sharding : uint8_t {
  kRows,   // chunks of dimension 0 (layout.h)
  kWhole,  // each has all of it: buffers, 0-d tensors
  kFlat,   // each has a range of its row-major elements (FSDP1's optimizer)
};

// One tensor-parallel rank's tensor.
struct Local {
  DType dtype = DType::f32;
  Shape shape;
  struct Held {
    const Part* part;
    Rows rows;  // kFlat: elements
  };
  std::vector<Held> held;  // parts with elements
};

// Joins the parts of one tp rank, sorted by dp. Throws input_error if their
// dtypes, shapes or chunk sizes are not those of one tensor.
//
// `shape` is the tp-local shape, which kFlat needs.
Local join_dp(const Catalog& catalog, const std::string& name,
              const std::vector<const Part*>& parts, uint32_t dp,
              Sharding sharding, const Shape& shape = {});

// Sets a tensor's shape and pieces from all its parts, sorted by tp, then dp.
// Leaves its name, kind and so on alone. `rule` must be known if tp > 1. Throws
// input_error if the tp ranks' tensors differ.
void join_tp(const Catalog& catalog, const std::vector<Local>& ranks,
             const TpRule& rule, Sharding sharding, Tensor& tensor);

// A box of a stored tensor's elements: `stored` is the tensor's shape, `at` the
// first element, `size` the box's shape.
Extent sub_extent(const Extent& extent, uint64_t element, const Shape& stored,
                  const Dims& at, const Shape& size);

// "pp_00/tp_01/sdp_02.pt", for messages.
std::string short_path(const std::string& path);

}  // namespace ckpt::fairseq2
