// SPDX-License-Identifier: Apache-2.0
// transformers' defaults for keys that a config.json lacks (hf_defaults.json).
#pragma once

#include <string>

#include "models/expr.h"

namespace ckpt::families {

// The defaults of the class of a model type, or an empty object.
const Json& hf_defaults(const std::string& model_type);

// Why models of that type don't go to Megatron-Core
// (not_megatrons.json); empty for all others.
std::string why_not_megatron(const std::string& model_type);

// transformers saves a text_config without its class's defaults, even sizes:
// LLaVA's has no number of heads. Adds those that neither it nor the whole has.
// `type`: the model type of a text_config that names none.
void complete_text_config(Json& config, const std::string& type);

}  // namespace ckpt::families
