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
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::peft {

inline constexpr std::string_view kConfigFile = "adapter_config.json";

inline constexpr std::string_view kWeightsFile = "adapter_model.safetensors";

struct Config {
  std::string path;  // of the file
  std::string type;  // "LORA", "IA3" …
  std::string base;
  uint64_t rank = 8;
  double alpha = 8;
  bool rslora = false;
  bool dora = false;
  bool fan_in_fan_out = false;
  std::vector<std::string> targets;  // names; or one expression
  std::vector<std::string> saved;    // modules_to_save
  // Of modules that an expression finds; the first that does counts.
  std::vector<std::pair<std::string, uint64_t>> ranks;
  std::vector<std::pair<std::string, double>> alphas;
  // What it has that changes the weights in a way of its own: "layer
  // replication", "PiSSA" …; "" if nothing.
  std::string hindrance;
};

// Of a directory, or of the directory that a file is in; nothing if there is
// none. Throws input_error for one that is damaged.
std::optional<Config> read_config(const std::string& path);

// Of what was opened, if its tensors are an adapter's. One that can't be read
// says nothing here.
std::optional<Config> config_of(const Catalog& catalog);

// Of a module of the base model: "model.layers.0.self_attn.q_proj".
uint64_t rank_of(const Config& config, const std::string& module);
// alpha / rank, or alpha / sqrt(rank), times `weight`; as peft's set_scale.
float scale_of(const Config& config, const std::string& module, double weight);

// "LoRA of base-model: rank 4, alpha 8; q_proj, v_proj; lm_head whole"
std::string describe(const Config& config);

}  // namespace ckpt::peft
