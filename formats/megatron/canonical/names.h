// SPDX-License-Identifier: Apache-2.0
// Megatron's formats and the names that dialects meet in.
//
//   file of one rank      sharded key                     canonical
//   input_layernorm       decoder.layers.self_attention…  decoder.layers.3.
//   .weight, layer 3      .layer_norm_weight [L, H]       self_attention.
//                                                         linear_qkv.
//                                                         layer_norm_weight
//   …local_experts.1.     ….experts.experts.linear_fc1    ….mlp.experts.
//   linear_fc1.weight     .weight [L, E, 2F, H]           linear_fc1.weight1
//
// Canonical names are those of the transformer_engine layer spec, with the
// numbers that layers and experts have in the model, one full tensor each.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "ckpt/catalog.h"

namespace ckpt::megatron {

// Makes a checkpoint of any megatron_* format (or one file with the names of
// Megatron's modules) a model under canonical names. Tensors of Kind::model
// are renamed, cut and joined; those of an optimizer follow their parameter
// where they are of its shape ("optimizer.state.exp_avg.<canonical>"). Wrapping
// prefixes, rng and _extra_state are left out, the args stay. Sets the
// catalog's dialect. Throws unfaithful_error for what can't be seen so.
void to_canonical(Catalog& catalog);

// True for names that a model can have: of a known module, numbered where it
// stands in layers, no sharded key, none of the other spellings.
bool is_canonical(std::string_view name);

// Tensors of the model whose names are not canonical.
std::set<std::string> not_canonical(const Catalog& catalog);

}  // namespace ckpt::megatron
