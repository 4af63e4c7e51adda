// SPDX-License-Identifier: Apache-2.0
// What one of two checkpoints has no place for: state of training, beside a
// file or a directory of weights alone.
#pragma once

#include <string>
#include <unordered_set>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/check.h"

namespace ckpt::library {

// What of `a` is of the training and not of the model, if `b` is a file or a
// directory of weights without any of that: it has no place there.
std::unordered_set<std::string> without_place(const Catalog& a,
                                              const Catalog& b);

// Makes differences of these "not_compared".
void mark_not_compared(const std::unordered_set<std::string>& names,
                       std::vector<Difference>& differences);

}  // namespace ckpt::library
