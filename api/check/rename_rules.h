// SPDX-License-Identifier: Apache-2.0
// Names that share nothing, though the tensors are the same.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/engine.h"
#include "ckpt/catalog.h"

namespace ckpt::library {

// Tensors that are equal bit for bit, several on one side at least, where
// nothing tells which is which: tied weights, norms of ones.
struct Alike {
  std::vector<std::string> a, b;
};

struct RenameRules {
  std::string rules;  // what --rename takes; "" if there is nothing to rename
  uint64_t tensors = 0;  // of A that get a name of B's by it
  // Not empty where no prefix and no star says it: the rules name by name.
  std::vector<std::pair<std::string, std::string>> pairs = {};
  std::vector<Alike> alike = {};  // what the rules leave out
};

// Rules for A's names. Tensors that only one of the two has are matched by
// their content, then those that are the only ones of their shape, or the only
// ones of their shape and norm; a * stands for numbers that stay. No rule
// joins a tensor that has an equal one in the other with any other. Nothing if
// no tensor would meet another.
std::optional<RenameRules> rename_rules(const Catalog& a, const Catalog& b,
                                        const Engine& engine);

}  // namespace ckpt::library
