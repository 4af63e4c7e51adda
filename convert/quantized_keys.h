// SPDX-License-Identifier: Apache-2.0
// The keys of quantization_config that rules know.
#pragma once

#include <string>

#include "lib/text/json.h"

namespace ckpt::families {

// Of a configuration of that quant_method ("mlx", "modelopt" where the file
// shows it by its form): the first key that no rule knows, or whose value
// changes what codes mean, in a sentence. "" if there is none.
std::string unknown_in_config(const nlohmann::json& config,
                              const std::string& method);

}  // namespace ckpt::families
