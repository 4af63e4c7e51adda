// SPDX-License-Identifier: Apache-2.0
// Checks the numbers of a configuration against the tensors that they describe:
//
//   kv_heads 4, head_dim 8   self_attn.k_proj.weight [16, 32]   32 rows wanted
//
// The ledger ("sizes" in facts.json) knows which numbers give which dimension
// of a tensor under transformers' names, which every conversion passes through.
// A target whose rules only rename would accept anything.
#pragma once

#include <string>
#include <vector>

#include "ckpt/error.h"
#include "convert/config/facts.h"
#include "convert/rules/mismatches.h"
#include "convert/rules/named_tensors.h"

namespace ckpt::families {

// What contradicts `facts`, each with both numbers and the tensor's name.
std::vector<Error> find_sizes(const NamedTensors& model, const Facts& facts,
                              const Globs& drop, bool padded,
                              const std::string& path);

// Throws unfaithful_error with both numbers for the first tensor of `model`,
// under transformers' names, that contradicts `facts`. `padded`: the
// embedding's rows may differ from the vocabulary; that is checked elsewhere.
void check_sizes(const NamedTensors& model, const Facts& facts,
                 const Globs& drop, bool padded, const std::string& path);

// Throws input_error for a fact of the wrong type: a count that is a text or a
// fraction, an epsilon that is not above zero.
void check_types(const Facts& facts, const std::string& path);

// Throws unfaithful_error if the last layers that the configuration counts are
// missing, or if there are more, except for layers that predict further tokens.
void check_layers(const NamedTensors& model, const Facts& facts,
                  const std::string& path);

}  // namespace ckpt::families
