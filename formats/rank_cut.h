// SPDX-License-Identifier: Apache-2.0
// How a tensor is cut for tensor-parallel ranks whose files hold one part each.
// Unlike with TpRule, the parts need not be equal groups.
//
//   qkv_proj [12, …] of 2 query and 1 key/value heads, 4 rows each, 2 ranks
//
//   whole   | q0 | q1 | k | v |      segments {8}, {4, repeat 2}, {4, repeat 2}
//   rank 0  | q0 | k | v |
//   rank 1  | q1 | k | v |
//
// Each segment is cut on its own: into one equal run per rank, or into fewer
// runs, each held by `repeat` neighbouring ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ckpt/catalog.h"
#include "lib/cuts.h"

namespace ckpt::formats {

using cuts::Segment;

struct Cut {
  uint32_t dim = 0;
  std::vector<Segment> segments;  // in order; none: whole on every rank

  bool whole() const { return segments.empty(); }
  // Elements of `dim` in equal groups, each cut evenly.
  static Cut even(uint32_t dim, uint64_t size, uint32_t groups = 1);
};

// The size of a segment of which a rank holds `local`; nothing on overflow.
std::optional<uint64_t> whole_size(uint64_t local, uint32_t ranks,
                                   uint32_t repeat = 1);

// Whether that many ranks can share a tensor of that shape this way.
bool fits(const Cut& cut, const Shape& shape, uint32_t ranks);

// Turns the shape of one rank's part into the tensor's. Returns false if the
// parts of that many ranks can't make up a tensor.
bool join_parts(const Cut& cut, uint32_t ranks, Tensor& tensor);

// The shape of each rank's part. The cut must fit.
Shape local_shape(const Cut& cut, const Shape& shape, uint32_t ranks);

std::vector<cuts::Part> parts_of(const Cut& cut, const Shape& shape,
                                 uint32_t ranks, uint32_t rank);

// Adds the pieces of a rank's part, stored at `extent`.
void add_pieces(const Cut& cut, uint32_t ranks, uint32_t rank,
                const Extent& extent, uint8_t transform, Tensor& tensor);

// The same for a target, whose pieces are contiguous: [4, gate | up, 8] gives
// one for each of the 4 and each of the two.
void add_target_pieces(const Cut& cut, uint32_t ranks, uint32_t rank,
                       uint32_t file, uint64_t offset, Tensor& tensor);

}  // namespace ckpt::formats
