// SPDX-License-Identifier: Apache-2.0
// Two checkpoints that are to be compared, brought to names that both have.
#pragma once

#include <string>

#include "api/engine.h"
#include "ckpt/catalog.h"

namespace ckpt::library {

// Models of different dialects become transformers' (by the family of either),
// those of two formats of Megatron's its canonical ones; what vLLM fuses is
// taken apart. Optimizer state meets by parameter and state, whatever formats
// call it ("param", "fp32_param", "master" are one). Says so in the
// assumptions, and in a warning where no common names are to be had. True if
// the models' names or arrangement changed.
bool meet(Catalog& a, Catalog& b, const std::string& family,
          const Engine& engine);

}  // namespace ckpt::library
