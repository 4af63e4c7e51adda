// SPDX-License-Identifier: Apache-2.0
// The optimizer in torch's form, for torch files:
//
//   state.emb.weight.__exp_avg      {"state": {7: {"exp_avg": tensor}},
//   param_group0: {lr, params,  ─►   "param_groups": [{lr, params: [0, …]}]}
//     _param_names}
//
// as OLMo-core's unshard_optim_state gives it. Ids count through the groups.
#pragma once

#include "ckpt/catalog.h"

namespace ckpt::olmo_core::v1 {

// A source of olmo_core_v1 with optimizer state, nested so; its parameters are
// beside it, under their names. Returns any other source unchanged.
Catalog as_state_dict(Catalog source);

}  // namespace ckpt::olmo_core::v1
