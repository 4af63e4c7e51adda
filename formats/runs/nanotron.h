// SPDX-License-Identifier: Apache-2.0
// nanotron's folder of a step: one safetensors file per parameter and
// tensor-parallel rank, whose metadata says where its slices go.
//
//   model/model/decoder/0/pp_block/attn/qkv_proj/
//     model_weight_pp-rank-0-of-1_tp-rank-1-of-2.safetensors
//       "data"           [18, 12]
//       __metadata__     unsharded_shape             "(36, 12)"
//                        local_global_slices_pairs   local#global;…
//
// A slice is start,stop,step per dimension, None for all of it:
//   0,6,None|None,None,None#6,12,None|None,None,None
// The optimizer's files have `names`, number -> name, and tensors cut like the
// parameter; with ZeRO 1 (…_dp-D-of-DP_…) each data-parallel rank has a run of
// a rank's flattened tensor. nanotron: src/nanotron/serialize/.
#pragma once

#include <string>

#include "ckpt/catalog.h"
#include "formats/format.h"

namespace ckpt::runs {

// Throws input_error if files don't fit together or a rank is missing.
Catalog read_nanotron(const std::string& folder,
                      const formats::ReadOptions& options);

}  // namespace ckpt::runs
