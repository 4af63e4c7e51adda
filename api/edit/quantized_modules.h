// SPDX-License-Identifier: Apache-2.0
// --layers, --experts: the modules that a quantization_config names by their
// numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "api/edit/config_edit.h"

namespace ckpt::library {

// Lists of names (modules_to_not_convert, ignore, exclude …) and keys that are
// names (extra_config, quantized_layers …) at any depth:
// "model.layers.3.mlp.gate" becomes that of each layer that layer 3 is now.
// Throws unfaithful_error for a pattern that has a layer's number.
void order_modules(ConfigTable& quantization,
                   const std::vector<uint32_t>& order, const std::string& path);

// The same for experts: "….experts.5.down_proj" has its new number, or goes.
// True if anything changed.
bool follow_expert_modules(ConfigTable& quantization,
                           const std::vector<uint64_t>& kept,
                           const std::string& path);

}  // namespace ckpt::library
