// SPDX-License-Identifier: Apache-2.0
// Megatron's formats, and the names in which dialects meet.
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
#include "formats/megatron/model/keys.h"

namespace ckpt::megatron {

// Turns a checkpoint of any megatron_* format (or one file with the names of
// Megatron's modules) into a model under canonical names. Renames, cuts and
// joins tensors of Kind::model; an optimizer's tensors follow their parameter
// if they have its shape ("optimizer.state.exp_avg.<canonical>"). Leaves out
// wrapping prefixes, rng and _extra_state; keeps the args. Sets the catalog's
// dialect. Throws unfaithful_error for what can't be viewed so.
void to_canonical(Catalog& catalog);

// True for names that a model can have: of a known module, numbered in layers,
// not a sharded key, and not in another spelling.
// `key` is the name's.
bool is_canonical(std::string_view name, const Key& key);

// Tensors of the model whose names are not canonical. `keys` are those of the
// tensors.
std::set<std::string> not_canonical(const Catalog& catalog,
                                    const KeyList& keys);

}  // namespace ckpt::megatron
