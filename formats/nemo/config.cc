// SPDX-License-Identifier: Apache-2.0
// Translates model_config.yaml into Megatron's arguments. What has no argument
// there stays in the file, which is carried.
#include <array>
#include <utility>

#include "ckpt/error.h"
#include "formats/fairseq2/model_yaml.h"
#include "formats/nemo/nemo.h"

namespace ckpt::nemo {
namespace {

using families::Config;
using families::Scalar;
using nlohmann::json;

// NeMo's key, Megatron's argument.
constexpr auto kSame = std::to_array<std::pair<const char*, const char*>>({
    {"num_layers", "num_layers"},
    {"hidden_size", "hidden_size"},
    {"ffn_hidden_size", "ffn_hidden_size"},
    {"num_attention_heads", "num_attention_heads"},
    {"kv_channels", "kv_channels"},
    {"layernorm_epsilon", "norm_epsilon"},
    {"make_vocab_size_divisible_by", "make_vocab_size_divisible_by"},
    {"override_vocab_size", "vocab_size"},
    {"rotary_base", "rotary_base"},
    {"rotary_percentage", "rotary_percent"},
    {"seq_len_interpolation_factor", "rotary_seq_len_interpolation_factor"},
    {"position_embedding_type", "position_embedding_type"},
    {"max_position_embeddings", "max_position_embeddings"},
    {"encoder_seq_length", "seq_length"},
    {"bias", "add_bias_linear"},
    {"qkv_bias", "add_qkv_bias"},
    {"num_moe_experts", "num_experts"},
    {"moe_router_topk", "moe_router_topk"},
    {"hidden_dropout", "hidden_dropout"},
    {"attention_dropout", "attention_dropout"},
    {"init_method_std", "init_method_std"},
    {"tensor_model_parallel_size", "tensor_model_parallel_size"},
    {"pipeline_model_parallel_size", "pipeline_model_parallel_size"},
    {"virtual_pipeline_model_parallel_size",
     "virtual_pipeline_model_parallel_size"},
    {"expert_model_parallel_size", "expert_model_parallel_size"},
});

struct ScalarToJson {
  json operator()(std::monostate) const { return nullptr; }
  template <class T>
  json operator()(const T& value) const {
    return value;
  }
};

const Scalar* find(const Config& config, std::string_view key) {
  const auto found = config.find(key);
  return found == config.end() ||
                 std::holds_alternative<std::monostate>(found->second)
             ? nullptr
             : &found->second;
}

std::string text_of(const Config& config, std::string_view key) {
  const Scalar* value = find(config, key);
  return value ? families::to_string(*value) : std::string();
}

void add_norm(const Config& config, json& args) {
  const std::string norm = text_of(config, "normalization");
  if (norm.starts_with("layernorm"))
    args["normalization"] = "LayerNorm";
  else if (norm == "rmsnorm")
    args["normalization"] = "RMSNorm";
  else if (!norm.empty())
    args["normalization"] = norm;
  if (norm == "layernorm1p") args["apply_layernorm_1p"] = true;
}

void add_activation(const Config& config, json& args) {
  std::string name = text_of(config, "activation");
  if (name.empty()) return;
  if (name.starts_with("fast-")) name = name.substr(5);
  args["swiglu"] = name == "swiglu";
  args["squared_relu"] = name == "squared-relu";
  if (name == "swiglu" || name == "squared-relu") return;
  if (name.ends_with("glu")) args["gated_linear_unit"] = true;
  if (name == "reglu") name = "relu";
  if (name != "gelu" && name != "geglu") args["ckpt_activation"] = name;
}

// A list has its items' keys, "num_layers.0". No argument here is one.
bool has_items(const Config& config, const std::string& key) {
  const auto next = config.lower_bound(key + ".");
  return next != config.end() && next->first.starts_with(key + ".");
}

// True and false alone: what else is there is refused where it is read.
json negated(const Scalar& value) {
  if (const bool* flag = std::get_if<bool>(&value)) return !*flag;
  return std::visit(ScalarToJson(), value);
}

json args_of(const Config& config) {
  json args = json::object();
  for (const auto& [from, to] : kSame) {
    if (const Scalar* value = find(config, from))
      args[to] = std::visit(ScalarToJson(), *value);
    else if (has_items(config, from))
      args[to] = json::array();
  }
  if (const Scalar* tied = find(config, "share_embeddings_and_output_weights"))
    args["untie_embeddings_and_output_weights"] = negated(*tied);
  const Scalar* groups = find(config, "num_query_groups");
  args["group_query_attention"] = groups != nullptr;
  if (groups) args["num_query_groups"] = std::visit(ScalarToJson(), *groups);
  const std::string precision = text_of(config, "precision");
  args["bf16"] = precision.starts_with("bf16");
  args["fp16"] = precision.starts_with("16");
  add_norm(config, args);
  add_activation(config, args);
  return args;
}

}  // namespace

std::optional<json> read_args(const std::string& path, std::string* why) {
  try {
    return args_of(fairseq2::read_flat_yaml(path));
  } catch (const Error& error) {
    if (error.code() != ExitCode::kDamaged) throw;
    if (why) *why = error.problem();
    return std::nullopt;
  }
}

}  // namespace ckpt::nemo
