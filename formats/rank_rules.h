// SPDX-License-Identifier: Apache-2.0
// How tensor-parallel ranks share tensors if the reader didn't say: by the
// rules of the dialect that names them.
#pragma once

#include <cstdint>
#include <string_view>

#include "ckpt/catalog.h"

namespace ckpt::formats {

// Whether add_rank_rules would have something to do.
bool lacks_rank_rules(const Catalog& catalog);

// Recognizes by name a tensor of a language model's vision or audio part.
bool is_tower(std::string_view name);

// Sets Tensor::tp where it is unknown and the dialect has a rule; otherwise it
// stays unknown. Optimizer state with its parameter's shape follows the
// parameter. Throws unfaithful_error if the ranks would cut a head.
void add_rank_rules(Catalog& catalog, std::string_view dialect, uint32_t tp);

}  // namespace ckpt::formats
