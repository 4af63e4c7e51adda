// SPDX-License-Identifier: Apache-2.0
// torchtitan's models beside those of transformers: names, rotary rows of
// Llama, and the projection that it trains in one and saves in three.
//
//   transformers                            torchtitan
//   model.layers.0.self_attn.q_proj.weight  layers.0.attention.qkv_linear
//                                             .wq.weight    saved
//                                             .wqkv.weight  trained: for each
//                                             key head its queries, key, value
//
// Moments are elementwise: they are arranged as their weights are. Private to
// this room.
#pragma once

#include <string>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::runs {

// Whose names the model's tensors have.
bool has_titan_names(const Catalog& source);
bool has_transformers_names(const Catalog& source);

// Model and optimizer with the other's names and arrangement. The numbers of
// heads come from config.json; the steps of parameters that become one are
// proven to be equal. Throws unfaithful_error for models whose arrangement is
// not known and for names that the other lacks.
void to_titan(Catalog& source);
void from_titan(Catalog& source);

// What a trained parameter is called by the other: of torchtitan's fused
// projection the three of transformers. None for names of neither.
std::vector<std::string> names_of_other(const std::string& parameter);

}  // namespace ckpt::runs
