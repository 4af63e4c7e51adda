// SPDX-License-Identifier: Apache-2.0
// How ranks share one dimension of a tensor. Everything any format does is one
// of three rules, or several in turn.
//
//   equal    each segment in ranks / repeat equal runs    tensor parallelism
//   chunk    torch.chunk: ceil(n / ranks) elements to     FSDP, flat buffers
//            each, then one short run, then none
//   slice    of what a rank has, a range                  FSDP over tp
//
//   qkv of 8 query and 4 + 4 key/value rows, tp 2, then rows of 3 FSDP ranks:
//
//   whole        | q0 q1 q2 q3 | q4 q5 q6 q7 | k0 k1 | k2 k3 | v0 v1 | v2 v3 |
//   tp rank 0    | q0 q1 q2 q3 | k0 k1 | v0 v1 |     equal
//   fsdp rank 1  | q3 | k0 k1 |                      chunk of 8 over 3, slice
//
// A rank's part is the runs below, one after the other. Everything here counts
// elements of that dimension; formats turn it into boxes and extents.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ckpt/box.h"

namespace ckpt::cuts {

struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t count() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

// A run of the whole dimension, and its start within the rank's part.
struct Run {
  uint64_t whole = 0;
  uint64_t local = 0;
  uint64_t count = 0;
  friend bool operator==(const Run&, const Run&) = default;
};
using Runs = std::vector<Run>;  // in the order of the part, without gaps

uint64_t count_of(const Runs& runs);

// The share of rank `rank` of `ranks` (at least 1) when torch.chunk splits
// `size` elements; an empty range at `size` for ranks past the end. Doesn't
// overflow for any numbers. 10 over 4: 3, 3, 3, 1; over 8: 2 each of five.
Range chunk(uint64_t size, uint64_t ranks, uint64_t rank);
// The number of elements in the first rank's chunk: ceil(size / ranks), which
// padded layouts give to every rank.
uint64_t chunk_size(uint64_t size, uint64_t ranks);

struct Segment {
  uint64_t size = 0;    // elements, in the whole dimension
  uint32_t repeat = 1;  // neighbouring ranks that hold the same run
};

// One run for each segment, even an empty one. Each segment's size must be a
// multiple of ranks / repeat, and ranks a multiple of repeat.
Runs equal(std::span<const Segment> segments, uint64_t ranks, uint64_t rank);
// A chunk of each of `groups` equal groups, which divide `size`. Where ranks
// divide a group too, this is `equal` of such segments.
Runs chunks(uint64_t size, uint64_t groups, uint64_t ranks, uint64_t rank);

// Elements [range.begin, range.end) of a part; `local` counts from range.begin.
// Empty runs are left out.
Runs slice(const Runs& runs, const Range& range);

// The same for a tensor that is cut along dimension `dim` only: a box of the
// tensor, and its start within the rank's part.
struct Part {
  Box box;
  Dims at;
};
Part whole(const Shape& shape);
std::vector<Part> parts(const Shape& shape, size_t dim, const Runs& runs);

}  // namespace ckpt::cuts
