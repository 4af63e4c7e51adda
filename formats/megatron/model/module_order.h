// SPDX-License-Identifier: Apache-2.0
// The order in which Megatron's modules list their parameters, which gradient
// buffers keep (reversed). It is not stored anywhere; it follows from the order
// in which modules make their parts:
//
//   embedding     word_embeddings, position_embeddings, tokentype_embeddings
//   decoder       layers 0, 1, …, then final_layernorm
//     layer       input_layernorm, self_attention, pre_mlp_layernorm, mlp
//       attention core_attention, linear_proj, linear_qkv, q_layernorm, …
//       mlp       linear_fc1, linear_fc2; or router, experts, shared_experts
//         linear  layer_norm_weight, layer_norm_bias, weight, bias
//         grouped weight0, bias0, weight1, bias1, … (TE 1.9 to 2.18)
//   mtp           layers of enorm, hnorm, eh_proj, transformer_layer, …
//   output_layer
//
// Sharded keys hide two things: whether a norm is a module of its own or part
// of the linear layer that it precedes (both have the linear layer's name),
// and whether experts are modules or rows of a grouped linear layer.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "formats/megatron/model/keys.h"

namespace ckpt::megatron {

struct OrderStyle {
  bool fused_norms = true;      // transformer_engine; false: local layers
  bool grouped_experts = true;  // false: one module per expert
  friend bool operator==(const OrderStyle&, const OrderStyle&) = default;
};

// Sorts like the parameters of a model; layer and expert are filled in later.
struct Order {
  static constexpr uint8_t kNowhere = 255;
  std::vector<uint32_t> rank;
  uint8_t layer_at = kNowhere;   // where the layer's number goes in rank
  uint8_t expert_at = kNowhere;  // likewise
  // Which part, for keys that are parts of one parameter (gate and up, z x B C
  // dt). Their ranks are equal.
  uint8_t part = 0;

  std::vector<uint32_t> at(uint64_t layer, uint64_t expert) const;
};

// Nothing for an unknown module.
std::optional<Order> order_of(const Key& key, const OrderStyle& style);

// True if it is trained. Buffers such as expert_bias are stored among the
// parameters.
bool is_parameter(const Key& key);

}  // namespace ckpt::megatron
