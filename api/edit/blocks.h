// SPDX-License-Identifier: Apache-2.0
// --blocks: what a rank that owns some decoder blocks keeps, as ModelOpt
// divides models. Besides its blocks it keeps the input embedding if it owns
// block 0, final norm and head if it owns the last block, and whatever belongs
// to no such part (a vision tower).
#pragma once

#include <functional>
#include <string>

#include "ckpt/catalog.h"

namespace ckpt::library {

// Throws usage_error unless it is such a list.
void check_blocks(const std::string& blocks);

// True for the tensors that the owner of `blocks` keeps ("0-3,8"; "0-3/4-7":
// either of two ranks). Throws usage_error for a block that the model lacks,
// unfaithful_error if names don't say their block.
std::function<bool(const Tensor&)> owned_blocks(const Catalog& catalog,
                                                const std::string& blocks);

}  // namespace ckpt::library
