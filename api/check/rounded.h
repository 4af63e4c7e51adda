// SPDX-License-Identifier: Apache-2.0
// Numbers and what ggml's blocks keep of them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "api/check/compare.h"
#include "api/engine.h"
#include "ckpt/catalog.h"

namespace ckpt::library {

// The type of the blocks that only one of the two is stored in: "Q8_0"; ""
// where none is or both are.
std::string blocks_of_one(const Catalog& a, const Tensor& x, const Catalog& b,
                          const Tensor& y);

// Compares numbers with those that blocks keep of them, and counts the tensor
// in `rounded`. Returns what no rounding to such blocks explains.
std::optional<Difference> rounded_difference(const Catalog& a, const Tensor& x,
                                             const Catalog& b, const Tensor& y,
                                             const std::string& type,
                                             const Engine& engine,
                                             std::vector<Rounded>& rounded);

}  // namespace ckpt::library
