// SPDX-License-Identifier: Apache-2.0
// Whether the names of a pickled state dict can be in the order in which a
// model registered its parameters. torch writes them that way
// (Module.state_dict): a module's own tensors, then those of each child.
//
//   model.embed.weight          model.embed.weight
//   model.layers.0.norm.weight  model.layers.0.norm.weight
//   model.layers.0.q.weight     model.layers.1.norm.weight
//   model.layers.1.norm.weight  model.layers.0.q.weight    <- left, and entered
//                                                              again
//
// Whoever wrote the file from something else (safetensors, shards, a dict of
// its own) leaves another order, most often that of the names.
#pragma once

#include <span>
#include <string>

#include "ckpt/catalog.h"

namespace ckpt::runs {

// What speaks against it, one clause; "" if nothing does.
std::string doubt_in_order(std::span<const Tensor* const> tensors);

// A shard with one tensor, which huggingface_hub writes before those that came
// earlier and still wait for theirs, if it is larger than a shard; "" if there
// is none. Tensors of one size keep their order: if there is a state of each
// parameter, the shapes tell whether others have lost theirs.
std::string alone_in_shard(std::span<const Tensor* const> tensors);

}  // namespace ckpt::runs
