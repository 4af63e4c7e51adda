// SPDX-License-Identifier: Apache-2.0
// The numbers of a configuration against the tensors that they describe:
//
//   kv_heads 4, head_dim 8   self_attn.k_proj.weight [16, 32]   32 rows wanted
//
// The ledger knows ("sizes" of facts.json) which numbers make which extent of a
// tensor of transformers' names, which every dialect passes through. A target
// whose rules only rename would take any.
#pragma once

#include <string>

#include "convert/facts.h"
#include "convert/mismatches.h"
#include "convert/named_tensors.h"

namespace ckpt::families {

// Throws unfaithful_error with both numbers for the first tensor of `model`, in
// transformers' names, that is not as `facts` has it. `padded`: the embedding
// may have other rows than the vocabulary, which somebody else looks at.
void check_sizes(const NamedTensors& model, const Facts& facts,
                 const Globs& drop, bool padded, const std::string& path);

// Throws input_error for a fact that is not of its type: a count that is a text
// or a fraction, an epsilon that is not above zero.
void check_types(const Facts& facts, const std::string& path);

// Throws unfaithful_error if the last layers that the configuration counts are
// not there. More may be: those that predict further tokens.
void check_layers(const NamedTensors& model, const Facts& facts,
                  const std::string& path);

}  // namespace ckpt::families
