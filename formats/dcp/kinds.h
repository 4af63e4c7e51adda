// SPDX-License-Identifier: Apache-2.0
// What a tensor of a distributed checkpoint is, judging by name alone: trainers
// choose the words. Also used by olmo_core.
#pragma once

#include "ckpt/catalog.h"

namespace ckpt::dcp {

// Sets kind, param and state of all tensors.
//
//   optim.state.<param>.exp_avg          optimizer state; also below optimizer
//   optimizer.param_groups.0.lr          and optimizers, and at the top
//   rng.rank0  dataloader.dp_rank_0      other
//   model.<param>  <param>               model; beside "model." all else is
//                                        other
void set_kinds(Catalog& catalog);

}  // namespace ckpt::dcp
