// SPDX-License-Identifier: Apache-2.0
// Puts optimizer state into the form that a target asks for.
//
//   plain                       fp32_param.<K>, exp_avg.<K> …; common_step
//   fully_sharded_model_space   fp32_param.<K> …            cores 0.8 to 0.15
//   fully_reshardable           param.<K> …                 cores from 0.15
//   dp_reshardable              flat buffers                cores from 0.15
//   fully_sharded_bucket_space  flat buffers                cores 0.6 to 0.14
//
// All except the flat buffers have one tensor for each parameter and state,
// under optimizer.state.; they differ in the name of the main weights and what
// the common part says. Flat buffers are written as fully_reshardable, since
// their layout belongs to one topology.
#pragma once

#include <optional>
#include <string_view>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"

namespace ckpt::megatron {

// Gives the catalog of a distributed checkpoint (sharded keys, the common part
// as objects) the optimizer state that the option "optim" asks for; "" keeps
// its form, except for flat buffers. Adds assumptions and problems. Throws
// unfaithful_error if it can't be done.
void convert_optimizer(Catalog& catalog, const Layout& layout);

// For ranks' files: makes one tensor for each parameter and state, under names
// without a chain, and the object "optimizer" with all parameter groups.
// Returns true for a distributed optimizer, which it becomes if the args ask
// for one. Throws unfaithful_error if the state's parameters can't be told.
bool gather_optimizer(Catalog& catalog, std::optional<bool> distributed);

}  // namespace ckpt::megatron
