// SPDX-License-Identifier: Apache-2.0
// Turns the optimizer of a distributed checkpoint into what ranks' files have.
//
//   optimizer.state.param.decoder.layers.mlp.…    [layer, …]
//     ─► fp32_param.decoder.layers.3.mlp.…        each layer and expert
//   {"optimizer": {"param_groups": […]}, "param_state_sharding_type": …}
//     ─► {"optimizer": {"param_groups": […]}}              distributed
//     ─► {"optimizer": {"state": {}, "param_groups": […]},
//         "fp32_from_fp16_params": []}                     not distributed
//
// The legacy writer fills the empty ones.
#pragma once

#include "ckpt/catalog.h"
#include "formats/megatron/model/facts.h"

namespace ckpt::megatron {

// Gives a distributed checkpoint with optimizer state the names of modules and
// the object "optimizer" of ranks' files. Throws unfaithful_error if the
// state's parameters can't be told.
void take_optimizer(Catalog& catalog, const Facts& facts);

}  // namespace ckpt::megatron
