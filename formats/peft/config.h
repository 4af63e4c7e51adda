// SPDX-License-Identifier: Apache-2.0
// adapter_config.json: what PEFT trained, on which base model, and how it is
// scaled.
//
//   {"peft_type": "LORA", "base_model_name_or_path": "…", "r": 8,
//    "lora_alpha": 16, "use_rslora": false, "use_dora": false,
//    "rank_pattern": {"REGEX": 4}, "alpha_pattern": {"REGEX": 32},
//    "target_modules": […], "modules_to_save": […], "fan_in_fan_out": false}
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::peft {

inline constexpr std::string_view kConfigFile = "adapter_config.json";

inline constexpr std::string_view kWeightsFile = "adapter_model.safetensors";

// Of one module, by its exact name.
struct Own {
  uint64_t rank = 0;
  double alpha = 0;
};

struct Config {
  std::string path;  // of the file
  std::string type;  // "LORA", "LOHA", "LOKR", "IA3" …
  // Whose names the factors have (formats/peft/names.h), for people too.
  std::string dialect = "peft", owner = "PEFT";
  std::string base;
  uint64_t rank = 8;
  double alpha = 8;
  bool says_rank = true, says_alpha = true;  // false: nothing does
  std::string unsaid = {};     // why not alpha, if not for want of a file
  bool alpha_is_rank = false;  // by definition: no file says another
  bool other_ranks = false;    // of some modules, as their factors show
  bool rslora = false;
  bool dora = false;
  bool fan_in_fan_out = false;
  bool ties = false;                  // ensure_weight_tying
  std::string bias = "none";          // which biases were trained
  double dropout = 0;                 // in training
  std::vector<std::string> targets;   // names; or one expression
  std::vector<std::string> saved;     // modules_to_save
  std::vector<std::string> excluded;  // exclude_modules: names, an expression
  std::vector<uint64_t> layers;       // layers_to_transform; none: all
  // For modules that an expression finds; the first that does counts.
  std::vector<std::pair<std::string, uint64_t>> ranks;
  std::vector<std::pair<std::string, double>> alphas;
  std::map<std::string, Own, std::less<>> own;  // before those
  // litgpt: the parts of a fused matrix that have factors: "q", "k", "v".
  std::vector<std::string> parts;
  // What the adapter has that changes the weights in its own way: "layer
  // replication", "PiSSA" …; "" if nothing.
  std::string hindrance;
  std::vector<std::string> unknown;  // keys that say something, not known here
};

// Reads the configuration in a directory, or in the directory of a file;
// nothing if there is none. Throws input_error if it is damaged.
std::optional<Config> read_config(const std::string& path);
// The same for a text; `path` is for messages.
Config parse_config(const std::string& text, const std::string& path);

// Whether peft would put factors on this module of the base model, if it is of
// a class that can have them.
bool is_target(const Config& config, const std::string& module);

// `module` is one of the base model: "model.layers.0.self_attn.q_proj".
uint64_t rank_of(const Config& config, const std::string& module);
double alpha_of(const Config& config, const std::string& module);
// alpha / rank, or alpha / sqrt(rank), times `weight`, as in peft's set_scale.
// What becomes a sum with the base.
bool is_sum(std::string_view type);
float scale_of(const Config& config, const std::string& module, double weight);

// "LoRA of base-model: rank 4, alpha 8; q_proj, v_proj; lm_head whole"
std::string describe(const Config& config);

}  // namespace ckpt::peft
