// SPDX-License-Identifier: Apache-2.0
// Megatron-Bridge's and NeMo 1's adapters under PEFT's names.
#pragma once

#include <vector>

#include "ckpt/catalog.h"
#include "convert/adapters/base.h"

namespace ckpt::families {

// The factors of each module of the base, "base_model.model.M.lora_A.weight". A
// linear_in that serves several modules becomes one for each of them; what all
// experts share, one for each expert. Throws unfaithful_error for modules that
// the base's family has no counterpart for.
std::vector<Tensor> peft_of_megatron(Catalog source, const AdapterBase& base);

}  // namespace ckpt::families
