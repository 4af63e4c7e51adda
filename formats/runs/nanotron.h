// SPDX-License-Identifier: Apache-2.0
// nanotron's folder of a step: a safetensors file for each parameter and
// tensor-parallel rank, which says in its metadata where its slices lie.
//
//   model/model/decoder/0/pp_block/attn/qkv_proj/
//     model_weight_pp-rank-0-of-1_tp-rank-1-of-2.safetensors
//       "data"           [18, 12]
//       __metadata__     unsharded_shape             "(36, 12)"
//                        local_global_slices_pairs   local#global;…
//
// A slice is start,stop,step for each dimension, None for all of it:
//   0,6,None|None,None,None#6,12,None|None,None,None
// The optimizer's files have `names`, number -> name, and tensors that are cut
// as the parameter is; with ZeRO 1 (…_dp-D-of-DP_…) each data-parallel rank has
// a run of a rank's flattened tensor. nanotron: src/nanotron/serialize/.
#pragma once

#include <string>

#include "ckpt/catalog.h"
#include "formats/format.h"

namespace ckpt::runs {

// Throws input_error for files that don't fit together or lack a rank.
Catalog read_nanotron(const std::string& folder,
                      const formats::ReadOptions& options);

}  // namespace ckpt::runs
