// SPDX-License-Identifier: Apache-2.0
// How nanotron cuts a parameter over tensor-parallel ranks, and an optimizer
// with ZeRO 1 a rank's tensor over data-parallel ones. Private to this room.
//
// A layer cuts one dimension: evenly, or each of its chunks evenly (queries,
// keys, values of a fused projection). Of rank 1 of 2, chunks of 12:
//
//   local    |  q 6  |  k 6  |  v 6  |         0,6   6,12  12,18
//   global   | . q | . k | . v |               6,12 18,24  30,36
//
// A slice is start,stop,step for each dimension, None for all of it:
//   0,6,None|None,None,None#6,12,None|None,None,None
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::runs::nanotron {

// Where a part of a rank's tensor lies in the whole.
struct Slice {
  Box local;
  Box global;
  // Dimensions that have numbers, not None.
  std::vector<size_t> local_numbers, global_numbers;
};

// A rank's tensor of a parameter.
struct Share {
  uint64_t tp = 0;
  Shape shape;
  std::vector<Slice> slices;
};

// "(36, 12)". `path`: of the file, for errors.
Shape read_shape(std::string_view text, const std::string& path);
std::vector<Slice> read_slices(std::string_view text, const Shape& local,
                               const Shape& global, const std::string& path);
std::string to_text(const std::vector<Slice>& slices);

// How a layer cuts a parameter, whatever the number of ranks.
struct Cut {
  size_t dim = 0;
  std::vector<uint64_t> chunks;  // lengths; they add up to the dimension's
  bool listed = false;  // the layer was given its chunks: it numbers local ones
};

// What all ranks' slices have in common; nothing if they follow no such rule.
std::optional<Cut> find_cut(const Shape& whole,
                            const std::vector<Share>& shares);
// A rank's part by the rule; nothing if a chunk does not divide.
std::optional<Share> share_of(const Cut& cut, const Shape& whole, uint64_t rank,
                              uint64_t ranks);
// All of it on each rank.
Share all_of(const Shape& whole);

// The pieces of a rank's tensor in the whole. `stored`: where it lies.
void add_pieces(const Share& share, const Piece& stored, DType dtype,
                std::vector<Piece>& out);
// ZeRO 1 flattens a rank's tensor and gives each data-parallel rank a run of
// it; the first ones have one element more where they don't divide it.
FlatRange zero_run(uint64_t elements, uint64_t rank, uint64_t ranks);
void add_run(const Share& share, const FlatRange& run, const Piece& stored,
             DType dtype, std::vector<Piece>& out);

}  // namespace ckpt::runs::nanotron
