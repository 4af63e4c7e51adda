// SPDX-License-Identifier: Apache-2.0
// Writes a step as another trainer's, or a checkpoint of no trainer as some
// trainer's: the model, Adam's moments and the groups in the form that its
// loader expects, and whatever else it can take.
//
//   source (any)                       DST, --to run --trainer hf_trainer
//     optim_world_size_2_rank_0.pt ──►   optimizer.pt    two groups, by decay
//     model_world_size_2_rank_0.pt ──►   model.safetensors
//     extra_state_…  scheduler     ──►   scheduler.pt    its position
//     extra_state_…  rng                 said to start afresh
#pragma once

#include "ckpt/catalog.h"
#include "ckpt/layout.h"

namespace ckpt::runs {

// True if the step should become another trainer's.
bool is_composed(const Catalog& source, const Layout& layout);

// Opens the values. Leaves out tensors that are neither the model's nor the
// optimizer's, and says so.
Catalog review_composed(Catalog source, const Layout& layout);

// Throws usage_error for a trainer whose folder can't be written this way, and
// unfaithful_error for an optimizer that is not Adam, has no names, or whose
// groups the trainer can't hold.
Target compose(const Catalog& source, const Layout& layout);

}  // namespace ckpt::runs
