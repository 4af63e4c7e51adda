// SPDX-License-Identifier: Apache-2.0
// --blocks: what a rank keeps that owns some decoder blocks, as ModelOpt
// divides models. Beside the blocks it keeps the input embedding if block 0 is
// its own, final norm and head if the last block is, and what belongs to no
// such part (a vision tower).
#pragma once

#include <functional>
#include <string>

#include "ckpt/catalog.h"

namespace ckpt::library {

// Throws usage_error for what isn't such a list.
void check_blocks(const std::string& blocks);

// True for the tensors that the owner of `blocks` keeps ("0-3,8"; "0-3/4-7":
// any of two ranks). Throws usage_error for a block that the model lacks, and
// unfaithful_error if the names don't tell their blocks.
std::function<bool(const Tensor&)> owned_blocks(const Catalog& catalog,
                                                const std::string& blocks);

}  // namespace ckpt::library
