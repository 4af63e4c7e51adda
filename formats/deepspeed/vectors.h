// SPDX-License-Identifier: Apache-2.0
// Which elements of which parameters a rank's flat vectors hold, for any number
// of ranks (see the pictures in optim_states.h).
#pragma once

#include <cstdint>
#include <vector>

#include "ckpt/box.h"
#include "formats/deepspeed/model_states.h"

namespace ckpt::deepspeed {

using Parameters = std::vector<NamedShape>;

// Elements `range` of a parameter are at element `at` of the vector.
struct Run {
  const NamedShape* parameter = nullptr;
  FlatRange range;
  uint64_t at = 0;
};

struct Vector {
  uint64_t size = 0;  // with padding
  uint64_t used = 0;  // up to the last element of a parameter
  std::vector<Run> runs;
};

// ZeRO 1, 2: a group's parameters one after another, padded to a multiple of
// two elements per rank, cut into equal partitions.
Vector partition_of(const Parameters& group, uint32_t rank, uint32_t ranks);

// ZeRO 3: the rank's part of each parameter, each padded.
Vector parts_of(const Parameters& group, uint32_t rank, uint32_t ranks);

// ZeRO 3: the elements of one part.
uint64_t part_size(const NamedShape& parameter, uint32_t ranks);

// ZeRO 3 steps through sub-groups of at least `size` elements per rank.
std::vector<Parameters> sub_groups(const Parameters& group, uint64_t size,
                                   uint32_t ranks);

}  // namespace ckpt::deepspeed
