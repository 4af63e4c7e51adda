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
// "model.layers.3.mlp.gate" is repeated for each new number of layer 3. Throws
// unfaithful_error for a pattern with a layer's number in it.
void order_modules(ConfigTable& quantization,
                   const std::vector<uint32_t>& order, const std::string& path);

// The same for experts: "….experts.5.down_proj" gets its new number, or is
// removed. True if anything changed.
bool follow_expert_modules(ConfigTable& quantization,
                           const std::vector<uint64_t>& kept,
                           const std::string& path);

}  // namespace ckpt::library
