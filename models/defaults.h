// SPDX-License-Identifier: Apache-2.0
// transformers' defaults for keys that a config.json lacks (hf_defaults.json).
#pragma once

#include <string>
#include <vector>

#include "models/expr.h"

namespace ckpt::families {

// The defaults of the class of a model type, or an empty object.
const Json& hf_defaults(const std::string& model_type);

// Why models of that type don't go to Megatron-Core
// (not_megatrons.json); empty for all others.
std::string why_not_megatron(const std::string& model_type);

// Beside a text_config, keys of the language model are leftovers: transformers
// makes that model of the text_config alone. Removes them from `config`, except
// for its ties, ids of tokens and `outer`, which are the whole model's.
void drop_beside_text_config(Json& config, const std::string& type,
                             const std::vector<std::string>& outer);

// transformers saves a text_config without its class's defaults, even sizes:
// LLaVA's has no number of heads. Adds those that neither it nor the whole has.
// `type`: the model type of a text_config that names none.
void complete_text_config(Json& config, const std::string& type);

}  // namespace ckpt::families
