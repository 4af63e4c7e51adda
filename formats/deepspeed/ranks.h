// SPDX-License-Identifier: Apache-2.0
// Rewrites a ZeRO checkpoint for another number of data-parallel ranks, as
// DeepSpeed itself would have saved it there:
//
//   TAG/mp_rank_00_model_states.pt                 ZeRO 0-2: dp_world_size
//      /zero_pp_rank_D_mp_rank_00_model_states.pt  ZeRO 3: frozen fragments
//      /bf16_zero_pp_rank_D_…_optim_states.pt      vectors cut anew
//
// DeepSpeed's own loader refuses optimizer state from another number of ranks.
// Values that don't depend on ranks stay as they are.
#pragma once

#include <cstdint>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"

namespace ckpt::deepspeed {

// `source`: all that a Reader found in a tag's directory. The target's files
// are below the directory above the tag's. Throws unfaithful_error for
// pipelines, tensor parallelism, experts and forms that are cut differently.
Target lay_out_ranks(const Catalog& source, uint32_t ranks);

}  // namespace ckpt::deepspeed
