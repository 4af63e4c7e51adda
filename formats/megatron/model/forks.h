// SPDX-License-Identifier: Apache-2.0
// Forks of Megatron-LM: what their args mean in Megatron-LM's words, and how
// their modules arrange rows (models/families/megatron_forks.json).
//
//   Megatron-LLM         use_rms_norm, tie_embed_logits … ─► normalization …
//     q, k rows rotated in pairs             ─► in halves
//     dense_h_to_4h  | up | gate |           ─► | gate | up |
//   Megatron-DeepSpeed   num_key_value_heads ─► num_query_groups
//     query | q0 q1 q2 q3 |, key_value | k0 v0 | k1 v1 |
//                                            ─► | q0 q1 k0 v0 | q2 q3 k1 v1 |
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "ckpt/catalog.h"
#include "lib/pickle/value.h"

namespace ckpt::megatron {

struct Facts;

// Megatron-LM's words that take the place of those in the args, null for what
// is not to be there; empty for args that are nobody's but Megatron-LM's.
// Throws input_error, naming `path`, for a fork's arg of another kind than it
// has.
nlohmann::json words_of_fork(const pickle::Document& document,
                             pickle::Id args_dict, const std::string& path);

// The args that a fork has in place of Megatron-LM's, by those:
// {"rotary_base", "rope_theta"}.
std::map<std::string, std::string> keys_of_fork(
    const pickle::Document& document, pickle::Id args_dict);

// Rearranges rows as Megatron-Core's modules have them, under their names. No
// byte moves. Throws unfaithful_error for an arg of a fork that changes the
// model in a way that Megatron-LM has no word for, by its name, and for sizes
// that don't fit.
void arrange_fork(Catalog& catalog, const Facts& facts);

// Throws unfaithful_error if rows would have to be rearranged.
void refuse_fork(const Catalog& catalog);

}  // namespace ckpt::megatron
