// SPDX-License-Identifier: Apache-2.0
#include "convert/quantized_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

namespace ckpt::families {
namespace {

using Value = nlohmann::json;

struct Method {
  std::string_view name;
  std::string_view keys;  // separated by spaces
};

// Keys that say which modules are quantized, how activations are, or how
// kernels work: what tensors show, or what goes with the configuration.
constexpr std::string_view kAny =
    "quant_method modules_to_not_convert ignore ignored_layers exclude_modules "
    "modules_to_convert kv_cache_scheme kv_cache_quant_algo producer backend "
    "dequantize run_compressed packed_modules_mapping config_groups "
    "quantization_status global_compression_ratio version ";
constexpr Method kMethods[] = {
    {"fp8",
     "activation_scheme weight_block_size fmt scale_fmt kv_cache_scheme "
     "weight_per_tensor act_per_tensor"},
    {"fbgemm_fp8", "activation_scale_ub"},
    {"compressed-tensors", "format sparsity_config transform_config"},
    {"modelopt", "quant_algo group_size has_zero_point pre_quant_scale"},
    {"modelopt_fp4", "quant_algo group_size"},
    {"mxfp4", ""},
    {"gptq",
     "bits group_size desc_act sym checkpoint_format format damp_percent "
     "damp_auto_increment true_sequential static_groups model_name_or_path "
     "model_file_base_name lm_head meta pack_dtype dataset tokenizer "
     "batch_size block_name_to_quantize cache_block_outputs exllama_config "
     "max_input_length model_seqlen module_name_preceding_first_block "
     "modules_in_block_to_quantize pad_token_id use_cuda_fp16 use_exllama "
     "disable_exllama dynamic is_marlin_format mse act_group_aware rotation "
     "adapter checkpoint_format_version"},
    {"awq",
     "bits group_size zero_point do_fuse modules_to_fuse fuse_max_seq_len "
     "exllama_config w_bit q_group_size"},
    {"auto-round",
     "bits group_size sym data_type packing_format autoround_version iters "
     "nsamples seqlen lr minmax_lr enable_quanted_input enable_minmax_tuning "
     "batch_size gradient_accumulate_steps low_gpu_mem_usage amp scale_dtype "
     "dataset block_name_to_quantize to_quant_block_names extra_config "
     "act_bits act_group_size act_sym act_dynamic act_data_type "
     "super_bits super_group_size quant_lm_head static_kv_dtype "
     "enable_norm_bias_tuning enable_torch_compile"},
    {"bitsandbytes",
     "load_in_4bit load_in_8bit _load_in_4bit _load_in_8bit "
     "bnb_4bit_quant_type bnb_4bit_use_double_quant bnb_4bit_compute_dtype "
     "bnb_4bit_quant_storage llm_int8_threshold llm_int8_skip_modules "
     "llm_int8_has_fp16_weight llm_int8_enable_fp32_cpu_offload"},
    {"quanto", "weights activations modules qmap"},
    {"torchao",
     "quant_type quant_type_kwargs include_input_output_embeddings "
     "untie_embedding_weights"},
    {"mlx", "bits group_size mode"},
};
constexpr std::string_view kGroup =
    "targets weights input_activations output_activations format ";
constexpr std::string_view kWeights =
    "num_bits type symmetric strategy group_size block_structure dynamic "
    "actorder observer observer_kwargs scale_dtype zp_dtype ";

bool has_word(std::string_view words, std::string_view word) {
  for (size_t at = words.find(word); at != words.npos;
       at = words.find(word, at + 1)) {
    const bool begins = at == 0 || words[at - 1] == ' ';
    const size_t end = at + word.size();
    if (begins && (end == words.size() || words[end] == ' ')) return true;
  }
  return false;
}

bool is_silent(const Value& value) {
  return value.is_null() || value == false ||
         (value.is_structured() && value.empty());
}

std::string unknown(std::string_view key) {
  return fmt::format("no rule knows what \"{}\" changes", key);
}

// What these say beyond false or null changes the weights.
constexpr std::string_view kTurning[] = {"rotation", "adapter",
                                         "is_marlin_format", "pre_quant_scale"};

Value member(const Value& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? Value() : *found;
}

std::string in_weights(const Value& weights) {
  if (weights.is_null()) return {};
  if (!weights.is_object()) return unknown("weights");
  for (const auto& [key, value] : weights.items())
    if (!has_word(kWeights, key) && !is_silent(value)) return unknown(key);
  for (const char* key :
       {"num_bits", "type", "symmetric", "strategy", "dynamic"})
    if (weights.contains(key) && weights[key].is_null())
      return fmt::format("\"{}\" of weights is null", key);
  if (const Value order = member(weights, "actorder");
      !is_silent(order) && order != "weight" && order != "static")
    return "actorder: groups are in an order of their own";
  if (!is_silent(member(weights, "dynamic")))
    return "\"dynamic\": scales of weights are made as the model runs";
  return {};
}

std::string in_groups(const Value& groups) {
  if (!groups.is_object()) return unknown("config_groups");
  for (const auto& group : groups) {
    if (!group.is_object()) return unknown("config_groups");
    for (const auto& [key, value] : group.items())
      if (!has_word(kGroup, key) && !is_silent(value)) return unknown(key);
    const Value targets = member(group, "targets");
    if (!targets.is_array() || targets.empty())
      return "a group of config_groups has no targets";
    for (const char* activations : {"input_activations", "output_activations"})
      if (const Value said = member(group, activations); said.is_object())
        for (const auto& item : said.items())
          if (!has_word(kWeights, item.key())) return unknown(item.key());
    if (group.contains("weights"))
      if (std::string found = in_weights(group["weights"]); !found.empty())
        return found;
  }
  return {};
}

}  // namespace

std::string unknown_in_config(const Value& config, const std::string& method) {
  const auto* known = std::ranges::find(kMethods, method, &Method::name);
  if (known == std::end(kMethods))
    return method.empty()
               ? std::string("it has no quant_method")
               : fmt::format("no rule knows quant_method \"{}\"", method);
  for (const auto& [key, value] : config.items()) {
    if (is_silent(value)) continue;
    const bool of_module =
        method == "mlx" && (value.is_object() || value.is_boolean());
    if (!has_word(kAny, key) && !has_word(known->keys, key) && !of_module)
      return unknown(key);
    if (std::ranges::find(kTurning, key) != std::end(kTurning))
      return fmt::format("\"{}\" changes what the codes are", key);
  }
  const auto groups = config.find("config_groups");
  return groups == config.end() || groups->is_null() ? std::string()
                                                     : in_groups(*groups);
}

}  // namespace ckpt::families
