// SPDX-License-Identifier: Apache-2.0
// Optimizer state in the form that a target asks for.
//
//   plain                       fp32_param.<K>, exp_avg.<K> …; common_step
//   fully_sharded_model_space   fp32_param.<K> …            cores 0.8 to 0.15
//   fully_reshardable           param.<K> …                 cores from 0.15
//   dp_reshardable              flat buffers                cores from 0.15
//   fully_sharded_bucket_space  flat buffers                cores 0.6 to 0.14
//
// All of them but the flat buffers have one tensor for each parameter and
// state, under optimizer.state.; what differs is the name of the main weights
// and what the common part says. Flat buffers are written as
// fully_reshardable, since their layout belongs to one topology.
#pragma once

#include <optional>
#include <string_view>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"

namespace ckpt::megatron {

// Gives the catalog of a distributed checkpoint (sharded keys, the common part
// as objects) the optimizer state that the option "optim" asks for; "" keeps
// what there is, but for flat buffers. Adds assumptions and problems. Throws
// unfaithful_error if it can't be done.
void convert_optimizer(Catalog& catalog, const Layout& layout);

// For ranks' files: one tensor for each parameter and state, under names
// without a chain, and the object "optimizer" with all parameter groups. True:
// of a distributed optimizer, which it becomes where the args ask for one.
// Throws unfaithful_error where the state's parameters can't be told.
bool gather_optimizer(Catalog& catalog, std::optional<bool> distributed);

}  // namespace ckpt::megatron
