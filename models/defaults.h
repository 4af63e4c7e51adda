// SPDX-License-Identifier: Apache-2.0
// What transformers takes for a key that a config.json does not have
// (hf_defaults.json).
#pragma once

#include <string>

#include "models/expr.h"

namespace ckpt::families {

// The defaults of the class of a model type, or an empty object.
const Json& hf_defaults(const std::string& model_type);

// Why models of that type don't go to Megatron-Core
// (not_megatrons.json); empty for all others.
std::string why_not_megatron(const std::string& model_type);

// transformers saves a text_config without what is its class's default, sizes
// too: LLaVA's says no heads. Adds those that neither it nor the whole has.
// `type`: the model type of a text_config that does not say one.
void complete_text_config(Json& config, const std::string& type);

}  // namespace ckpt::families
