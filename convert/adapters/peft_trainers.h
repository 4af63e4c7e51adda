// SPDX-License-Identifier: Apache-2.0
// Modules of trainers that name them in their own way, by transformers' names
// (Llama's and its like): torchtune's, litgpt's.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "convert/adapters/base.h"
#include "formats/peft/config.h"
#include "formats/peft/names.h"

namespace ckpt::families {

// The factors of a module for PEFT: one tensor, or one for each part of a fused
// matrix. Throws unfaithful_error for modules without a counterpart.
std::vector<Tensor> peft_of_trainer(const Catalog& source, const Tensor& tensor,
                                    const peft::Part& part,
                                    const peft::Config& config,
                                    const AdapterBase& base);

}  // namespace ckpt::families
