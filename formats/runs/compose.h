// SPDX-License-Identifier: Apache-2.0
// A step written as another trainer's, or a checkpoint of no trainer as one's:
// the model, Adam's moments and the groups in the form that this trainer's
// loader asks for, and of the rest what it can take.
//
//   source (any)                        DST, --to run --trainer hf_trainer
//     optim_world_size_2_rank_0.pt ──►    optimizer.pt       two groups, by
//     decay model_world_size_2_rank_0.pt ──►    model.safetensors extra_state_…
//     scheduler     ──►    scheduler.pt       its position extra_state_…  rng
//     said to start afresh
#pragma once

#include "ckpt/catalog.h"
#include "ckpt/layout.h"

namespace ckpt::runs {

// True if the step is to be another trainer's than its own.
bool is_composed(const Catalog& source, const Layout& layout);

// Opens the values, and leaves out, saying so, tensors that are neither the
// model's nor the optimizer's.
Catalog review_composed(Catalog source, const Layout& layout);

// Throws usage_error for a trainer whose folder can't be written so, and
// unfaithful_error for an optimizer that is not Adam, has no names, or whose
// groups the trainer can't hold.
Target compose(const Catalog& source, const Layout& layout);

}  // namespace ckpt::runs
