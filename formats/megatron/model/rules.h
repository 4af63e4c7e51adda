// SPDX-License-Identifier: Apache-2.0
// How tensor-parallel ranks share the parameters of Megatron's modules.
//
//   rows         …linear_qkv.weight   equal parts of dimension 0
//   columns      …linear_proj.weight  equal parts of dimension 1
//   gated rows   …linear_fc1.weight   [gate; up]: equal parts of each half
//   replicated   norms, routers, biases of what is split by columns
#pragma once

#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/megatron/model/facts.h"
#include "formats/megatron/model/keys.h"

namespace ckpt::megatron {

// For the model's tensors and their optimizer state, under sharded keys and
// module names. The dimension counts prepended axes, too. Experts are cut by
// the expert tensor parallel size. kUnknown for modules that are not in the
// table, and for fc1 until it is known whether it is gated.
TpRule tp_rule(const Key& key, const Facts& facts);
TpRule tp_rule(std::string_view name, const Facts& facts);

// Derives what the args don't say from names and shapes: gated, num_layers,
// num_experts, untied. `keys` are those of the tensors.
void infer_facts(const std::vector<Tensor>& tensors, const KeyList& keys,
                 Facts& facts);
// The same, and parses no name of optimizer state, which tells nothing.
void infer_facts(const std::vector<Tensor>& tensors, Facts& facts);

}  // namespace ckpt::megatron
