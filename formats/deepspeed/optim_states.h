// SPDX-License-Identifier: Apache-2.0
// One rank's *_optim_states.pt: flat vectors, cut over the ranks.
//
//   ZeRO 1, 2   a group's parameters, one after the other, padded, and cut
//               into equal partitions, one for each rank
//               single_partition_of_fp32_groups[g], base_optimizer_state
//   ZeRO 3      each parameter cut into equal parts; a rank's parts of all
//               parameters, one after the other, in lists of sub-groups
//               fp32_flat_groups[i], optimizer_state_dict
//
// The last fp32 partitions are stored without padding, other states with it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/catalog.h"
#include "containers/torch/container.h"

namespace ckpt::deepspeed {

// A 1-D vector in a file.
struct Flat {
  DType dtype = DType::f32;
  uint32_t file = 0;
  uint64_t offset = 0;
  uint64_t numel = 0;
  uint8_t transform = kNoTransform;
};

// One param group (ZeRO 1, 2) or sub-group (ZeRO 3).
struct Group {
  Flat fp32;
  std::map<std::string, Flat> states;   // exp_avg, exp_avg_sq
  std::map<std::string, Flat> scalars;  // step
};

// Where a rank says that a parameter's elements are in its partition.
struct Fragment {
  uint64_t start = 0;
  uint64_t numel = 0;
  friend bool operator==(const Fragment&, const Fragment&) = default;
};

struct OptimRank {
  std::string path;
  uint32_t stage = 1;  // 2 is stored like 1
  std::vector<Group> groups;
  std::vector<uint64_t> partition_counts;  // one, or one per group
  // One map per group; none in old versions.
  std::vector<std::map<std::string, Fragment>> mappings;
};

// Throws input_error, and unfaithful_error for forms that can't be read.
OptimRank read_optim_rank(const torch::Container& container);

}  // namespace ckpt::deepspeed
