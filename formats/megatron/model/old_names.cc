// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/model/old_names.h"

#include <array>
#include <utility>

namespace ckpt::megatron {
namespace {

using Row = std::pair<std::string_view, std::string_view>;

constexpr std::string_view kModel = "language_model.";

// Names of the model; those of layers follow.
constexpr std::array kModules = {
    Row{"embedding.", "embedding."},
    Row{"output_layer.", "output_layer."},
    Row{"encoder.final_norm.", "decoder.final_layernorm."},
    Row{"encoder.final_layernorm.", "decoder.final_layernorm."},
    Row{"transformer.final_layernorm.", "decoder.final_layernorm."},
};

constexpr std::string_view kStacks[] = {"encoder.layers.",
                                        "transformer.layers."};

// Names in a layer. The norms are those that core fuses with the layer after
// them.
constexpr std::array kLayer = {
    // TransformerEngine's TransformerLayer
    Row{"self_attention.layernorm_qkv.", "self_attention.linear_qkv."},
    Row{"self_attention.qkv.", "self_attention.linear_qkv."},
    Row{"self_attention.proj.", "self_attention.linear_proj."},
    Row{"layernorm_mlp.layer_norm_", "mlp.linear_fc1.layer_norm_"},
    Row{"layernorm_mlp.fc1_", "mlp.linear_fc1."},
    Row{"layernorm_mlp.fc2_", "mlp.linear_fc2."},
    // megatron.legacy, and its forks
    Row{"self_attention.query.", "self_attention.query."},
    Row{"self_attention.key_value.", "self_attention.key_value."},
    Row{"input_norm.", "self_attention.linear_qkv.layer_norm_"},
    Row{"input_layernorm.", "self_attention.linear_qkv.layer_norm_"},
    Row{"self_attention.query_key_value.", "self_attention.linear_qkv."},
    Row{"attention.query_key_value.", "self_attention.linear_qkv."},
    Row{"self_attention.dense.", "self_attention.linear_proj."},
    Row{"attention.dense.", "self_attention.linear_proj."},
    Row{"post_attention_norm.", "mlp.linear_fc1.layer_norm_"},
    Row{"post_attention_layernorm.", "mlp.linear_fc1.layer_norm_"},
    Row{"mlp.dense_h_to_4h.", "mlp.linear_fc1."},
    Row{"mlp.dense_4h_to_h.", "mlp.linear_fc2."},
};

template <class Rows>
std::string replaced(std::string_view name, const Rows& rows) {
  for (const auto& [from, to] : rows)
    if (name.starts_with(from))
      return std::string(to) + std::string(name.substr(from.size()));
  return {};
}

}  // namespace

std::string core_name(std::string_view name) {
  if (!name.starts_with(kModel)) return std::string(name);
  const std::string_view rest = name.substr(kModel.size());
  if (rest == "lm_head") return "output_layer.weight";  // Megatron-LLM's
  if (std::string found = replaced(rest, kModules); !found.empty())
    return found;
  for (const std::string_view stack : kStacks) {
    if (!rest.starts_with(stack)) continue;
    const size_t dot = rest.find('.', stack.size());
    if (dot == rest.npos) break;
    const std::string found = replaced(rest.substr(dot + 1), kLayer);
    if (found.empty()) break;
    return "decoder.layers." +
           std::string(rest.substr(stack.size(), dot + 1 - stack.size())) +
           found;
  }
  return std::string(name);
}

}  // namespace ckpt::megatron
