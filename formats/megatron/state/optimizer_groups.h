// SPDX-License-Identifier: Apache-2.0
// What the common part says about an optimizer: the hyper-parameters of its
// parameter groups and the loss scale.
//
//   one optimizer   {"optimizer": {"param_groups": [{…, "step": 7}]},
//                    "grad_scaler": {…}, "param_state_sharding_type": "…"}
//   chained         {0: {…}, 1: {…}}       dense, experts
//   flat buffers    only the type; the rest are objects of each model-parallel
//                   rank: optimizer.distributed.dp_group_idx_<m>.optimizer
#pragma once

#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/megatron/state/optimizer_common.h"

namespace ckpt::megatron {

// The optimizers in an `optimizer` entry: the entry itself, or those of a
// chain.
std::vector<pickle::Id> chained(const pickle::Document& document,
                                pickle::Id optimizer);

// The first sharding type named by it or by content_metadata; "" if none.
std::string sharding_type(const Catalog& catalog);

// True for objects of flat buffers, "optimizer.distributed.dp_group_idx_…".
bool is_group_object(const Object& object);
// True for objects that hold the buffers themselves (dp_zero_gather_scatter).
bool is_state_object(const Object& object);

// Sets `optimizer` from objects of flat buffers or the entry of another type.
// Throws unfaithful_error if ranks differ in more than which groups they have.
// Adds what it had to assume to the catalog.
void set_optimizer(CommonEditor& editor, Catalog& catalog);

// Sets content_metadata as a save of this type would.
void set_content_metadata(CommonEditor& editor);

}  // namespace ckpt::megatron
