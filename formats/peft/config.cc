// SPDX-License-Identifier: Apache-2.0
#include "formats/peft/config.h"

#include <algorithm>
#include <cmath>
#include <regex>

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/text/json.h"
#include "lib/text/number.h"
#include "lib/text/other_json.h"
#include "lib/text/words.h"

namespace ckpt::peft {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostExpression = 1000;

Error wrong(const Config& config, std::string_view key, const Json& value) {
  return input_error({config.path, {}}, "{}: {} is of a wrong kind", key,
                     value.dump().substr(0, 80));
}

// A missing or null key leaves the value as it is.
template <class Value>
void take(const Config& config, const Json& root, const char* key,
          Value& value) {
  const auto found = root.find(key);
  if (found == root.end() || found->is_null()) return;
  bool fits = found->is_number();
  if constexpr (std::is_same_v<Value, bool>)
    fits = found->is_boolean();
  else if constexpr (std::is_same_v<Value, std::string>)
    fits = found->is_string();
  else if constexpr (std::is_same_v<Value, uint64_t>)
    fits = found->is_number_unsigned();
  if (!fits) throw wrong(config, key, *found);
  value = found->get<Value>();
}

// PEFT has a default for a missing one, and fails on null.
void take_number(const Config& config, const Json& root, const char* key,
                 auto& value) {
  if (const auto found = root.find(key);
      found != root.end() && found->is_null())
    throw wrong(config, key, *found);
  take(config, root, key, value);
}

// A list of names, or one expression.
std::vector<std::string> names(const Config& config, const Json& root,
                               const char* key) {
  const auto found = root.find(key);
  if (found == root.end() || found->is_null()) return {};
  if (found->is_string()) return {found->get<std::string>()};
  if (!found->is_array()) throw wrong(config, key, *found);
  std::vector<std::string> list;
  for (const Json& name : *found) {
    if (!name.is_string()) throw wrong(config, key, name);
    list.push_back(name.get<std::string>());
  }
  return list;
}

// A number or a list of them.
std::vector<uint64_t> layers(const Config& config, const Json& root) {
  const auto found = root.find("layers_to_transform");
  if (found == root.end() || found->is_null()) return {};
  std::vector<uint64_t> list;
  for (const Json& one : found->is_array() ? *found : Json::array({*found})) {
    if (!one.is_number_unsigned())
      throw wrong(config, "layers_to_transform", one);
    list.push_back(one.get<uint64_t>());
  }
  return list;
}

template <class Value>
std::vector<std::pair<std::string, Value>> patterns(const Config& config,
                                                    const Json& root,
                                                    const char* key) {
  const auto found = root.find(key);
  if (found == root.end() || found->is_null()) return {};
  if (!found->is_object()) throw wrong(config, key, *found);
  std::vector<std::pair<std::string, Value>> list;
  for (const auto& [expression, value] : found->items()) {
    Value number = 0;
    take(config, *found, expression.c_str(), number);
    list.emplace_back(expression, number);
  }
  return list;
}

bool is_set(const Json& root, const char* key) {
  const auto found = root.find(key);
  return found != root.end() && !found->is_null() && *found != false &&
         !(found->is_structured() && found->empty());
}

// How the factors were initialized. Those of other ways than these are relative
// to weights that peft computes from the base every time it loads the adapter.
std::string hindrance_at_start(const Json& root) {
  const auto init = root.find("init_lora_weights");
  if (init == root.end() || !init->is_string()) return {};
  const auto how = init->get<std::string>();
  for (const char* plain : {"gaussian", "eva", "orthogonal"})
    if (how == plain) return {};
  for (const char* relative : {"pissa", "corda", "olora", "OLoRA", "loftq"})
    if (how.starts_with(relative))
      return "init_lora_weights is " + how +
             ": it counts from base weights that peft changes at load; save it "
             "with path_initial_model_for_weight_conversion";
  return "init_lora_weights is " + how.substr(0, 80) +
         ": it is not known whether peft changes the base's weights for it";
}

// Each of them makes a weight that is not base + scale * B A.
std::string find_hindrance(const Config& config, const Json& root) {
  if (!is_sum(config.type))
    return "it is of type " + config.type + ", not LORA, LOHA or LOKR";
  for (const auto& [key, what] :
       {std::pair{"layer_replication", "it repeats layers of the base model"},
        {"target_parameters",
         "it changes parameters that aren't a module's matrix"},
        {"alora_invocation_tokens", "it is switched on by tokens (aLoRA)"},
        {"trainable_token_indices", "it has rows for single tokens"},
        {"arrow_config", "it is a mixture of adapters (Arrow)"},
        {"use_qalora", "QALoRA pools its inputs"},
        {"use_bdlora", "its factors are of blocks (BD-LoRA)"}})
    if (is_set(root, key)) return fmt::format("{} ({})", what, key);
  return hindrance_at_start(root);
}

// peft: re.match(rf"(.*\.)?({key})$", name)
bool finds(const Config& config, const std::string& expression,
           const std::string& name) {
  if (expression == name || name.ends_with("." + expression)) return true;
  if (expression.size() > kMostExpression || name.size() > kMostExpression)
    throw input_error({config.path, {}}, "an expression of {} bytes",
                      expression.size());
  try {
    return std::regex_match(name, std::regex("(.*\\.)?(" + expression + ")"));
  } catch (const std::regex_error& error) {
    throw input_error({config.path, {}}, "{}: can't be read as an expression",
                      expression.substr(0, 80));
  }
}

// Keys of peft 0.18's LoraConfig and of newer ones, read here or without effect
// on merged weights.
constexpr std::string_view kKnown =
    "alora_invocation_tokens alpha alpha_pattern arrow_config auto_mapping "
    "base_model_name_or_path bias corda_config decompose_both "
    "decompose_factor ensure_weight_tying eva_config exclude_modules "
    "fan_in_fan_out inference_mode init_lora_weights init_weights "
    "layer_replication layers_pattern layers_to_transform loftq_config "
    "lora_alpha lora_bias lora_dropout megatron_config megatron_core "
    "module_dropout modules_to_save peft_type peft_version qalora_group_size "
    "r rank_dropout rank_dropout_scale rank_pattern revision runtime_config "
    "target_modules target_parameters task_type trainable_token_indices "
    "use_bdlora use_dora use_effective_conv2d use_qalora use_rslora";

std::vector<std::string> unknown_keys(const Json& root) {
  std::vector<std::string> unknown;
  for (const auto& [key, value] : root.items())
    if (is_set(root, key.c_str()) && !text::has_word(kKnown, key))
      unknown.push_back(key);
  return unknown;
}

std::string listed(const std::vector<std::string>& all) {
  std::string text;
  for (const std::string& one : all) text += (text.empty() ? "" : ", ") + one;
  return text;
}

}  // namespace

Config parse_config(const std::string& text, const std::string& path) {
  Config config;
  config.path = path;
  if (!text::parse_json(text, path).is_object())
    throw input_error({config.path, {}}, "expected an object");
  // Parse again, for the order of its members, in which patterns are tried.
  const auto root = text::parse_or_discard<Json>(text);
  take(config, root, "peft_type", config.type);
  take(config, root, "base_model_name_or_path", config.base);
  take_number(config, root, "r", config.rank);
  take_number(config, root, config.type == "LORA" ? "lora_alpha" : "alpha",
              config.alpha);
  take(config, root, "use_rslora", config.rslora);
  take(config, root, "use_dora", config.dora);
  take(config, root, "fan_in_fan_out", config.fan_in_fan_out);
  take(config, root, "ensure_weight_tying", config.ties);
  take(config, root, "bias", config.bias);
  take(config, root, "lora_dropout", config.dropout);
  config.targets = names(config, root, "target_modules");
  config.saved = names(config, root, "modules_to_save");
  config.excluded = names(config, root, "exclude_modules");
  config.layers = layers(config, root);
  config.ranks = patterns<uint64_t>(config, root, "rank_pattern");
  config.alphas = patterns<double>(config, root, "alpha_pattern");
  config.hindrance = find_hindrance(config, root);
  config.unknown = unknown_keys(root);
  return config;
}

std::optional<Config> read_config(const std::string& path) {
  const std::string directory =
      io::is_directory(path) ? path : io::parent(path);
  const std::string file = io::join(directory, kConfigFile);
  if (!io::is_file(file)) return {};
  constexpr uint64_t kMost = uint64_t{1} << 24;
  return parse_config(io::read_file(file, kMost), file);
}

bool is_target(const Config& config, const std::string& module) {
  const auto found = [&](const std::string& name) {
    return finds(config, name, module);
  };
  if (config.targets.empty() || !std::ranges::any_of(config.targets, found) ||
      std::ranges::any_of(config.excluded, found))
    return false;
  if (config.layers.empty()) return true;
  std::string_view rest = module;
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find('.'));
    if (const auto layer = text::number(part))
      return std::ranges::find(config.layers, *layer) != config.layers.end();
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
  }
  return false;
}

uint64_t rank_of(const Config& config, const std::string& module) {
  if (const auto own = config.own.find(module); own != config.own.end())
    return own->second.rank;
  for (const auto& [expression, rank] : config.ranks)
    if (finds(config, expression, module)) return rank;
  return config.rank;
}

double alpha_of(const Config& config, const std::string& module) {
  if (const auto own = config.own.find(module); own != config.own.end())
    return own->second.alpha;
  for (const auto& [expression, value] : config.alphas)
    if (finds(config, expression, module)) return value;
  return config.alpha;
}

bool is_sum(std::string_view type) {
  return type == "LORA" || type == "LOHA" || type == "LOKR";
}

float scale_of(const Config& config, const std::string& module, double weight) {
  const double alpha = alpha_of(config, module);
  const auto rank = static_cast<double>(rank_of(config, module));
  return static_cast<float>(weight * alpha /
                            (config.rslora ? std::sqrt(rank) : rank));
}

std::string describe(const Config& config) {
  std::string text =
      config.type == "LORA"
          ? (config.dora ? "LoRA with magnitudes (DoRA)" : "LoRA")
      : config.type == "LOHA" ? "LoHa"
      : config.type == "LOKR" ? "LoKr"
                              : config.type;
  if (!config.base.empty()) text += " of " + config.base;
  if (config.dialect != "peft")
    text += fmt::format(", in the names of {}", config.owner);
  if (is_sum(config.type))
    text += fmt::format(
        ": rank {}{}, alpha {}{}{}", config.rank,
        config.ranks.empty() && !config.other_ranks ? "" : " and others",
        config.says_alpha ? fmt::format("{}", config.alpha) : "unknown",
        config.alphas.empty() ? "" : " and others",
        config.rslora ? ", by the root of the rank" : "");
  if (!config.targets.empty()) text += "; " + listed(config.targets);
  if (!config.saved.empty()) text += "; whole: " + listed(config.saved);
  return text;
}

}  // namespace ckpt::peft
