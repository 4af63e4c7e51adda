// SPDX-License-Identifier: Apache-2.0
// Arithmetic of lanes and tiles, one for the host's loops and the GPU's: two
// paths that have to read and write the same bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "reshard/plan/plan.h"

namespace ckpt::reshard {

// A lane is read row by row if less than a quarter of it is wanted.
inline bool is_dense(const Lane& lane) {
  return lane.width * 4 >= lane.row_stride;
}

// What a row of a lane takes in a buffer.
inline uint64_t bytes_per_row(const Lane& lane) {
  return is_dense(lane) ? std::max(lane.row_stride, lane.width) : lane.width;
}

uint64_t dot(const Dims& index, const Dims& strides);

// Bytes from the first to the end of the last element of a tile.
uint64_t span_of(const Gather& gather, const Dims& shape, uint64_t element);

// The box of a gather, halved until each tile and the file range that it
// touches fit buffers; in row-major order of what was halved. Tiles cover the
// box exactly once.
class Tiles {
 public:
  struct Room {
    uint64_t element = 0;  // bytes of one, as the source stores it
    uint64_t span = 0;     // most bytes of the file range; at least `element`
    uint64_t count = 0;    // most elements; at least 1
  };
  Tiles() = default;
  // `gather` stays alive.
  Tiles(const Gather& gather, Room room);

  // False when there are no more.
  bool next(Dims& begin, Dims& shape);

 private:
  const Gather* gather_ = nullptr;
  Room room_;
  std::vector<std::pair<Dims, Dims>> left_;  // begin, shape
};

}  // namespace ckpt::reshard
