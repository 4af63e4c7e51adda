// SPDX-License-Identifier: Apache-2.0
// Gives two checkpoints common names for a comparison.
#pragma once

#include <string>

#include "api/engine.h"
#include "ckpt/catalog.h"

namespace ckpt::library {

// Models of different dialects get transformers' names (by the family of
// either), two Megatron formats their canonical ones; what vLLM fuses is split.
// Optimizer state is matched by parameter and state, whatever formats call it
// ("param", "fp32_param" and "master" are one). Reports this in the
// assumptions, and warns if there are no common names. True if the models'
// names or arrangement changed.
bool meet(Catalog& a, Catalog& b, const std::string& family,
          const Engine& engine);

}  // namespace ckpt::library
