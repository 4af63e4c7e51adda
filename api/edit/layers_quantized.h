// SPDX-License-Identifier: Apache-2.0
// --layers: the modules that a quantization_config names by their layers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "api/edit/config_edit.h"

namespace ckpt::library {

// Lists of names (modules_to_not_convert, ignore, exclude …) at any depth:
// "model.layers.3.mlp.gate" becomes that of each layer that layer 3 is now.
// Throws unfaithful_error for a pattern that has a layer's number.
void order_modules(ConfigTable& quantization,
                   const std::vector<uint32_t>& order, const std::string& path);

}  // namespace ckpt::library
