// SPDX-License-Identifier: Apache-2.0
// Names that share nothing, though the tensors are the same.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "api/engine.h"
#include "ckpt/catalog.h"

namespace ckpt::library {

struct RenameRules {
  std::string rules;     // what --rename takes
  uint64_t tensors = 0;  // of A that get a name of B's by it
};

// Rules for A's names. Tensors that only one of the two has are matched by
// their content, then those that are the only ones of their shape, or the only
// ones of their shape and norm; a * stands for numbers that stay. Nothing if no
// tensor would meet another.
std::optional<RenameRules> rename_rules(const Catalog& a, const Catalog& b,
                                        const Engine& engine);

}  // namespace ckpt::library
