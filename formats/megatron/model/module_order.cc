// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/model/module_order.h"

#include <algorithm>
#include <iterator>

#include "formats/megatron/model/parts.h"
#include "lib/text/number.h"

namespace ckpt::megatron {
namespace {

using std::string_view;

// Siblings in the order of their creation; a module's own parameters come
// before those of its parts. One list serves all levels, since no two modules
// disagree.
constexpr string_view kOrder[] = {
    "embedding", "decoder", "mtp", "output_layer",
    // embedding
    "word_embeddings", "position_embeddings", "tokentype_embeddings",
    // decoder; a layer of multi-token prediction
    "layers", "enorm", "hnorm", "eh_proj", "transformer_layer",
    "mtp_model_layer", "final_layernorm", "final_norm",
    // layer
    "input_layernorm", "self_attention", "pre_cross_attn_layernorm",
    "cross_attention", "pre_mlp_layernorm", "mlp",
    // state space mixer: its own parameters first
    "mixer", "dt_bias", "A_log", "D", "in_proj", "conv1d", "norm", "out_norm",
    "out_proj",
    // attention
    "core_attention", "softmax_offset", "linear_proj", "linear_q_proj",
    "linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj",
    "linear_kv_up_proj", "linear_qkv", "linear_q", "linear_kv", "q_layernorm",
    "k_layernorm", "kv_layernorm",
    // mlp
    "gate_weight", "router", "experts", "shared_experts", "linear_fc1",
    "linear_fc2",
    // linear
    "layer_norm_weight", "layer_norm_bias", "weight", "bias"};

constexpr string_view kBuffers[] = {"expert_bias",
                                    "local_tokens_per_expert",
                                    "global_tokens_per_expert",
                                    "ga_steps",
                                    "inv_freq",
                                    "_extra_state"};

std::optional<uint32_t> rank_of(string_view word) {
  const auto found = std::ranges::find(kOrder, word);
  if (found == std::end(kOrder)) return std::nullopt;
  return static_cast<uint32_t>(found - std::begin(kOrder));
}

std::vector<string_view> split(string_view name) {
  std::vector<string_view> words;
  while (true) {
    const size_t dot = name.find('.');
    words.push_back(name.substr(0, dot));
    if (dot == name.npos) return words;
    name.remove_prefix(dot + 1);
  }
}

// A norm that is a module of its own has the name of the linear layer after it:
// …self_attention.linear_qkv.layer_norm_weight.
void unfold_norm(std::vector<string_view>& words) {
  constexpr string_view kFolded = "layer_norm_";
  const size_t n = words.size();
  if (n < 3 || !words[n - 1].starts_with(kFolded)) return;
  const bool input =
      words[n - 3] == "self_attention" && words[n - 2] == "linear_qkv";
  const bool mlp = words[n - 3] == "mlp" && words[n - 2] == "linear_fc1";
  if (!input && !mlp) return;
  words[n - 1].remove_prefix(kFolded.size());
  words[n - 3] = input ? "input_layernorm" : "pre_mlp_layernorm";
  words.erase(words.end() - 2);
}

// weight_w and weight_v are gate and up; weight7 belongs to expert 7.
void split_parameter(std::vector<string_view>& words, uint8_t& part) {
  string_view& last = words.back();
  if (last.ends_with("_w") || last.ends_with("_v")) {
    part = last.ends_with("_v") ? 1 : 0;
    last.remove_suffix(2);
  }
  for (const string_view word : {"weight", "bias"})
    if (last.starts_with(word) && text::is_digits(last.substr(word.size())))
      last = word;
}

}  // namespace

std::vector<uint32_t> Order::at(uint64_t layer, uint64_t expert) const {
  std::vector<uint32_t> place = rank;
  if (layer_at != kNowhere) place[layer_at] = static_cast<uint32_t>(layer);
  if (expert_at != kNowhere) place[expert_at] = static_cast<uint32_t>(expert);
  return place;
}

std::optional<Order> order_of(const Key& key, const OrderStyle& style) {
  Order order;
  // A mixer's in_proj.weight.B is a part of in_proj.weight.
  const auto mixed = part_key(key.name);
  if (mixed) order.part = static_cast<uint8_t>(mixed->part);
  std::vector<string_view> words = split(mixed ? mixed->whole : key.name);
  split_parameter(words, order.part);
  // Both styles have a norm before the mlp, as a module of its own or first in
  // linear_fc1. Before experts it is always a module.
  const bool folds = words.back().starts_with("layer_norm_");
  if (folds && (!style.fused_norms || words[words.size() - 2] == "linear_fc1"))
    unfold_norm(words);
  const bool expert = key.is_expert();
  for (size_t i = 0; i < words.size(); ++i) {
    const string_view word = words[i];
    if (text::is_digits(word) || word == "local_experts") continue;
    if (word == "experts" && i > 0 && words[i - 1] == "experts") continue;
    const auto rank = rank_of(word);
    if (!rank || order.rank.size() > 32) return std::nullopt;
    order.rank.push_back(*rank);
    if (word == "layers" && (key.layer || key.layer_axis) &&
        order.layer_at == Order::kNowhere) {
      order.layer_at = static_cast<uint8_t>(order.rank.size());
      order.rank.push_back(0);
    }
    if (word == "experts" && expert && !style.grouped_experts) {
      order.expert_at = static_cast<uint8_t>(order.rank.size());
      order.rank.push_back(0);
    }
  }
  // A grouped layer registers weight0, bias0, weight1, bias1, …
  if (expert && style.grouped_experts && !order.rank.empty()) {
    order.expert_at = static_cast<uint8_t>(order.rank.size() - 1);
    order.rank.insert(order.rank.end() - 1, 0);
  }
  return order;
}

bool is_parameter(const Key& key) {
  const string_view last = key.name.substr(key.name.rfind('.') + 1);
  return std::ranges::find(kBuffers, last) == std::end(kBuffers);
}

}  // namespace ckpt::megatron
