// SPDX-License-Identifier: Apache-2.0
// How tensor-parallel ranks share tensors of which no reader said it: by the
// rules of the dialect that names them.
#pragma once

#include <cstdint>
#include <string_view>

#include "ckpt/catalog.h"

namespace ckpt::formats {

// Whether add_rank_rules would have something to do.
bool lacks_rank_rules(const Catalog& catalog);

// What sees or hears for a language model, by its name.
bool is_tower(std::string_view name);

// Sets Tensor::tp where it is unknown and the dialect has a rule; what has none
// stays unknown. Optimizer state of its parameter's shape follows it. Throws
// unfaithful_error for ranks that would cut a head.
void add_rank_rules(Catalog& catalog, std::string_view dialect, uint32_t tp);

}  // namespace ckpt::formats
