// SPDX-License-Identifier: Apache-2.0
// Converts between the names of modules, as ranks have them, and the sharded
// keys of distributed checkpoints.
//
//   decoder.layers.3.input_layernorm.weight          (local spec)
//     ─► decoder.layers.self_attention.linear_qkv.layer_norm_weight  [layer]
//   decoder.layers.3.mlp.experts.linear_fc1.weight7
//     ─► decoder.layers.mlp.experts.experts.linear_fc1.weight [layer, expert]
//   exp_avg.decoder.layers.3.…
//     ─► optimizer.state.exp_avg.decoder.layers.…
//
// Layers are stacked where Megatron does it: if all have the same parameters,
// and the args don't ask for numbered layers. Else the number stays in the
// name.
#pragma once

#include "ckpt/catalog.h"
#include "formats/megatron/model/facts.h"

namespace ckpt::megatron {

// From module names with global numbers. Renames the claims, too. Throws
// unfaithful_error if a number is missing or layers differ.
void stack_modules(Catalog& catalog, const Facts& facts);

// Joins the halves that singleton_local_shards keeps apart: weight_w, weight_v
// and bias_w, bias_v become weight and bias. True if there were any.
bool join_gated(Catalog& catalog);

// The inverse of stacking: gives each layer and each expert its own number,
// "decoder.layers.3.…", "….experts.experts.7.linear_fc1.weight".
void number_layers(Catalog& catalog);

// The inverse of all this, for a checkpoint with sharded keys: makes module
// names with global numbers, in the spec that the args name (else the
// engine's), in the order of modules; states as "exp_avg.decoder.layers.3.…".
void name_modules(Catalog& catalog, const Facts& facts);

}  // namespace ckpt::megatron
