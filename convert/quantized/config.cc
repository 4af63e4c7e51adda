// SPDX-License-Identifier: Apache-2.0
#include "convert/quantized/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "ckpt/error.h"
#include "containers/hf/hf.h"
#include "lib/io/file.h"

namespace ckpt::families {
namespace {

using Value = nlohmann::json;

constexpr uint64_t kMostConfig = 64 << 20;

// The keys of quantization_config that rules know.

struct Method {
  std::string_view name;
  std::string_view keys;  // separated by spaces
};

// Keys that say which modules are quantized, how activations are, or how
// kernels work: what tensors show, or what goes with the configuration.
constexpr std::string_view kOfEveryMethod =
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

// Of a configuration of that quant_method ("mlx", "modelopt" where the file
// shows it by its form): the first key that no rule knows, or whose value
// changes what codes mean, in a sentence. "" if there is none.
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
    if (!has_word(kOfEveryMethod, key) && !has_word(known->keys, key) &&
        !of_module)
      return unknown(key);
    if (std::ranges::find(kTurning, key) != std::end(kTurning))
      return fmt::format("\"{}\" changes what the codes are", key);
  }
  const auto groups = config.find("config_groups");
  return groups == config.end() || groups->is_null() ? std::string()
                                                     : in_groups(*groups);
}

constexpr const char* kKeys[] = {"quantization_config", "compression_config",
                                 "quantization"};
constexpr std::string_view kOldFiles[] = {
    "quantize_config.json", "quant_config.json", "quantization_config.json",
    "hf_quant_config.json", "quanto_qmap.json"};

std::string word(const Value& object, const char* key) {
  return word_in(object, key);
}

uint64_t count(const Value& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_unsigned()
             ? found->get<uint64_t>()
             : 0;
}

std::vector<uint64_t> pair(const Value& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array() || found->size() != 2)
    return {};
  std::vector<uint64_t> pair;
  for (const Value& value : *found)
    if (value.is_number_unsigned() && value.get<uint64_t>() > 0)
      pair.push_back(value.get<uint64_t>());
  return pair.size() == 2 ? pair : std::vector<uint64_t>();
}

bool says(const Value& object, const char* key, bool value) {
  const auto found = object.find(key);
  return found != object.end() && found->is_boolean() && *found == value;
}

bool has_members(const Value& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_structured() && !found->empty();
}

// What the model does besides multiplying by its weights.
std::string find_hindrance(const Value& object) {
  if (has_members(object, "transform_config"))
    return "transform_config: the model turns its activations as its weights "
           "are turned";
  const auto sparsity = object.find("sparsity_config");
  if (sparsity != object.end() && sparsity->is_object())
    if (const std::string format = word(*sparsity, "format");
        !format.empty() && format != "dense")
      return "sparsity_config: weights are stored as " + format;
  return {};
}

// The block of one group of modules of compressed-tensors; {} if it states
// none.
std::vector<uint64_t> block_of_group(const Value& weights) {
  const std::string strategy = word(weights, "strategy");
  const uint64_t size = count(weights, "group_size");
  if (size > 0 && (strategy.empty() || strategy == "group")) return {1, size};
  return pair(weights, "block_structure");
}

// compressed-tensors: one group of modules, rarely more. What they don't agree
// about counts as not stated.
void take_groups(const Value& groups, QuantizationConfig& config) {
  bool first = true;
  for (const Value& group : groups) {
    const auto weights =
        group.is_object() ? group.find("weights") : group.end();
    if (!group.is_object() || weights == group.end() || !weights->is_object())
      continue;
    if (const std::string format = word(group, "format"); !format.empty())
      config.formats.push_back(format);
    const uint64_t bits = count(*weights, "num_bits");
    const std::vector<uint64_t> block = block_of_group(*weights);
    if (first || config.bits != bits) config.bits = first ? bits : 0;
    // "" of all that differ
    const auto agree = [&](std::string& all, const char* key) {
      const std::string one = word(*weights, key);
      if (first || all != one) all = first ? one : std::string();
    };
    agree(config.type, "type");
    agree(config.strategy, "strategy");
    if (const uint64_t size = count(*weights, "group_size");
        first || config.group_size != size)
      config.group_size = first ? size : 0;
    if (first || config.block != block)
      config.block = first ? block : std::vector<uint64_t>();
    config.asymmetric =
        says(*weights, "symmetric", false) && (first || config.asymmetric);
    first = false;
  }
}

QuantizationConfig::Affine affine_of(const Value& object) {
  QuantizationConfig::Affine affine{count(object, "bits"),
                                    count(object, "group_size")};
  if (const auto mode = object.find("mode"); mode != object.end())
    affine.mode = mode->is_string() ? mode->get<std::string>() : mode->dump();
  return affine;
}

// MLX names no method: its configuration has bits and group_size, for some
// modules their own, and says no more of how codes are made.
bool is_mlx(const Value& object) {
  return !object.contains("quant_method") && object.contains("bits") &&
         object.contains("group_size") && !object.contains("desc_act") &&
         !object.contains("zero_point") && !object.contains("version");
}

QuantizationConfig config_of(const Value& object) {
  QuantizationConfig config{.there = true};
  config.method = is_mlx(object) ? "mlx" : word(object, "quant_method");
  if (config.method == "mlx") {
    config.affine = affine_of(object);
    for (const auto& [key, value] : object.items())
      if (value.is_object()) config.affine_of[key] = affine_of(value);
  }
  config.checkpoint_format = word(object, "checkpoint_format");
  if (config.checkpoint_format.empty() && config.method == "gptq")
    config.checkpoint_format = word(object, "format");
  if (const std::string format = word(object, "format"); !format.empty())
    config.formats.push_back(format);
  config.packing = word(object, "packing_format");
  config.algorithm = word(object, "quant_algo");
  if (const auto map = object.find("qmap"); map != object.end())
    config.quanto = *map;
  config.version = word(object, "version");
  config.bits = count(object, "bits");
  if (config.bits == 0) config.bits = count(object, "w_bit");
  config.group_size = count(object, "group_size");
  config.block = pair(object, "weight_block_size");
  config.ordered = says(object, "desc_act", true);
  config.overrides =
      has_members(object, "dynamic") || has_members(object, "extra_config");
  config.hindrance = find_hindrance(object);
  if (config.hindrance.empty())
    config.hindrance = unknown_in_config(object, config.method);
  if (const auto groups = object.find("config_groups");
      groups != object.end() && groups->is_object())
    take_groups(*groups, config);
  return config;
}

const Value* find_config(const Value& root) {
  if (!root.is_object()) return nullptr;
  for (const char* key : kKeys)
    if (const auto found = root.find(key);
        found != root.end() && found->is_object())
      return &*found;
  const auto text = root.find("text_config");
  return text == root.end() ? nullptr : find_config(*text);
}

constexpr std::string_view kBlank = " \t\r\n";

// The end of the string whose opening quote is at `at`.
size_t after_string(const std::string& text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at)
    if (text[at] == '\\') ++at;
  return std::min(at + 1, text.size());
}

// True if a string with its quotes spells `key`, in whatever way:
// "quantization\u005fconfig" does, too.
bool spells(std::string_view string, const std::string& key) {
  if (string.find('\\') == string.npos)
    return string.size() >= 2 && string.substr(1, string.size() - 2) == key;
  const Value value = Value::parse(string, nullptr, false);
  return value.is_string() && value.get_ref<const std::string&>() == key;
}

// The end of the value that begins at `at`.
size_t after_value(const std::string& text, size_t at) {
  int depth = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '"') {
      at = after_string(text, at);
      if (depth == 0) return at;
      continue;
    }
    if (depth == 0 && (c == ',' || c == '}' || c == ']')) return at;
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']')
      if (--depth == 0) return at + 1;
    ++at;
  }
  return at;
}

}  // namespace

std::string word_in(const nlohmann::json& object, const std::string& key) {
  if (!object.is_object()) return {};
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>()
                                                     : std::string();
}

std::string sidecar_text(const Sidecar& sidecar) {
  return sidecar.text ? *sidecar.text
                      : io::read_file(sidecar.path, kMostConfig);
}

nlohmann::json said_quantization(const Catalog& catalog) {
  const auto parsed = [&](std::string_view name) -> Value {
    for (const Sidecar& sidecar : catalog.sidecars)
      if (sidecar.name == name && sidecar.size <= kMostConfig)
        return text::parse_python_json(sidecar_text(sidecar), sidecar.path);
    return nullptr;
  };
  const Value root = formats::config_json_of(catalog);
  if (const Value* found = find_config(root)) return *found;
  for (const std::string_view name : kOldFiles) {
    Value old = parsed(name);
    if (!old.is_object()) continue;
    const auto set_method = [&](const char* method) {
      if (word(old, "quant_method").empty()) old["quant_method"] = method;
    };
    if (name == "quantize_config.json") set_method("gptq");
    if (name == "quant_config.json") set_method("awq");
    if (name == "quanto_qmap.json")
      old = {{"quant_method", "quanto"}, {"qmap", std::move(old)}};
    if (name == "hf_quant_config.json") {
      if (const auto inner = old.find("quantization");
          inner != old.end() && inner->is_object())
        old = Value(*inner);
      set_method("modelopt");
    }
    return old;
  }
  return nullptr;
}

QuantizationConfig quantization_config(const Catalog& catalog) {
  const Value said = said_quantization(catalog);
  return said.is_object() ? config_of(said) : QuantizationConfig();
}

std::string without_member(const std::string& text, const std::string& key) {
  std::string out = text;
  for (size_t at = 0; at < out.size();) {
    if (out[at] != '"') {
      ++at;
      continue;
    }
    const size_t end = after_string(out, at);
    const size_t colon = out.find_first_not_of(kBlank, end);
    const bool is_key = colon != out.npos && out[colon] == ':' &&
                        spells(std::string_view(out).substr(at, end - at), key);
    if (!is_key) {
      at = end;
      continue;
    }
    const size_t value = out.find_first_not_of(kBlank, colon + 1);
    if (value == out.npos) return text;
    size_t last = after_value(out, value);
    // Includes the comma after it or, for the last member, the one before.
    const size_t comma = out.find_first_not_of(kBlank, last);
    size_t first = at;
    if (comma != out.npos && out[comma] == ',') {
      last = std::min(out.find_first_not_of(kBlank, comma + 1), out.size());
    } else {
      const size_t before = out.find_last_not_of(kBlank, at - 1);
      if (before != out.npos && out[before] == ',') first = before;
    }
    out.erase(first, last - first);
    at = first;
  }
  return out;
}

void drop_quantization_config(Catalog& catalog) {
  // Formats that have no configuration of their own carry the file.
  const std::string beside = io::join(catalog.path, "config.json");
  if (io::is_file(beside) &&
      std::ranges::none_of(catalog.sidecars, [](const Sidecar& sidecar) {
        return sidecar.name == "config.json";
      }))
    catalog.sidecars.push_back(
        {"config.json", beside, io::file_size(beside).value_or(0), nullptr});
  std::erase_if(catalog.sidecars, [](const Sidecar& sidecar) {
    return std::ranges::find(kOldFiles, sidecar.name) != std::end(kOldFiles);
  });
  for (Sidecar& sidecar : catalog.sidecars) {
    if (sidecar.name != "config.json" || sidecar.size > kMostConfig) continue;
    const std::string old = sidecar_text(sidecar);
    std::string text = old;
    for (const char* key : kKeys) text = without_member(text, key);
    if (text == old) continue;
    text::parse_python_json(text, sidecar.path);  // it still is one
    sidecar.path = "made:" + sidecar.name;
    sidecar.size = text.size();
    sidecar.text = std::make_shared<const std::string>(std::move(text));
    catalog.assumptions.push_back(
        "config.json: quantization_config is left out, the weights are "
        "dequantized");
  }
}

}  // namespace ckpt::families
