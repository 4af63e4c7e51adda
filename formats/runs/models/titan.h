// SPDX-License-Identifier: Apache-2.0
// Converts between torchtitan's models and transformers': names, Llama's rotary
// rows, the projection that is trained as one and saved as three, and experts.
//
//   transformers                            torchtitan
//   model.layers.0.self_attn.q_proj.weight  layers.0.attention.qkv_linear
//                                             .wq.weight    saved
//                                             .wqkv.weight  trained (unless
//                                             fuse_qkv is false): for each key
//                                             head its queries, key, value
//   model.layers.0.mlp.experts              layers.0.moe.routed_experts
//     .7.up_proj.weight       saved           .inner_experts.w3_EFD
//     .gate_up_proj           trained         w1_EFD and w3_EFD
//
// Moments are elementwise, so they are arranged like their weights. Private to
// this room.
#pragma once

#include "ckpt/catalog.h"

namespace ckpt::runs {

// True if the model's tensors have torchtitan's names.
bool has_titan_names(const Catalog& source);
// True for those of its models that are not known here, too.
bool is_titans(const Catalog& source);
bool has_transformers_names(const Catalog& source);

// Gives model and optimizer the other's names and arrangement. The model's
// numbers come from config.json; the steps of parameters that become one are
// proven equal. `fused`: queries, keys and values are trained as one, as they
// are by default; saved weights are the same. Throws unfaithful_error for
// models whose arrangement is not known and for names that the other lacks.
void to_titan(Catalog& source, bool fused);
void from_titan(Catalog& source);

// Refuses what torchtitan trains and transformers only keeps in its files:
// layers of multi-token prediction.
void check_trained(const Catalog& source);

}  // namespace ckpt::runs
