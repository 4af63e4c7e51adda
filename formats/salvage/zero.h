// SPDX-License-Identifier: Apache-2.0
// ZeRO 3 writes two files for each data-parallel rank: its partition of all
// elements, and model states that are the same on all ranks.
//
//   zero_pp_rank_1_mp_rank_00_model_states.pt      names, shapes, buffers
//   bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt elements
#pragma once

#include <string>
#include <vector>

#include "formats/salvage/repair.h"

namespace ckpt::salvage {

struct Twin {
  std::string file;  // that is missing
  std::string from;  // another rank's, which has what it had
};

// The model states that partitions lack, if another rank's can stand for them:
// frozen parameters are in pieces, a different one on each rank. `files` are
// relative to `root`, sorted.
std::vector<Twin> lost_model_states(const std::string& root,
                                    const std::vector<std::string>& files);

// The archive at `path` as torch.save would have written it to a file called
// `name`, which it has in its records' names.
Repair archive_renamed(const std::string& path, const std::string& name);

}  // namespace ckpt::salvage
