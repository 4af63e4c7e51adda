// SPDX-License-Identifier: Apache-2.0
// Checkpoints of DeepSpeed: ZeRO 0-3 and universal ones.
//
//   save/latest                              text: the tag
//   save/TAG/mp_rank_MM_model_states.pt                      ZeRO 0-2
//           /zero_pp_rank_D_mp_rank_MM_model_states.pt       ZeRO 3
//           /bf16_zero_pp_rank_D_mp_rank_MM_optim_states.pt  ZeRO 1-3
//           /layer_LL-model_MM-model_states.pt               pipelines
//
//   save/latest_universal
//   save/TAG_universal/zero/PARAMETER/{fp32,exp_avg,exp_avg_sq,step}.pt
//                     /mp_rank_MM_model_states.pt            as before
//
// D is the data-parallel rank, whatever the name says; M counts tensor-parallel
// ranks first, then pipeline stages. The catalog's model tensors are the fp32
// master weights of trainable parameters, by name, and what only `module`
// holds: frozen parameters and buffers. Optimizer state is PARAMETER.STATE.
#pragma once

#include <memory>

#include "formats/format.h"

namespace ckpt::deepspeed {

std::unique_ptr<formats::Reader> make_reader();
// Writes universal checkpoints, from sources of this format.
std::unique_ptr<formats::Writer> make_writer();

}  // namespace ckpt::deepspeed
