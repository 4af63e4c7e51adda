// SPDX-License-Identifier: Apache-2.0
// What an adapter of any dialect says about itself, as PEFT would say it.
//
//   dialect     where
//   peft        adapter_config.json
//   diffusers   lora_adapter_metadata in the header of a safetensors file
//   kohya       ss_network_dim, ss_network_alpha, ss_base_model_version there;
//               an .alpha for each module
//   mlx         adapter_config.json: lora_parameters
//   torchtune   adapter_config.json, as PEFT's
//   litgpt      hyperparameters.yaml: lora_r, lora_alpha
//   bridge      run_config.yaml: peft.dim, peft.alpha
//   nemo        model_config.yaml: peft.lora_tuning
#pragma once

#include <optional>

#include "ckpt/catalog.h"
#include "formats/peft/config.h"

namespace ckpt::peft {

// Nothing if the tensors are no adapter's. What nothing says is taken from the
// factors (rank, targets) or left unsaid (says_alpha). Throws an Error for what
// can't be read.
std::optional<Config> read_settings(const Catalog& catalog);

// The same; nothing if it can't be read, nor for an adapter of PEFT's names
// without a configuration.
std::optional<Config> config_of(const Catalog& catalog);

}  // namespace ckpt::peft
