// SPDX-License-Identifier: Apache-2.0
// Warnings about a conversion that succeeded.
#pragma once

#include <cstdint>
#include <optional>

#include "ckpt/catalog.h"
#include "models/numbers.h"

namespace ckpt::families {

// If Megatron's args don't say how many rows of the vocabulary are in use,
// padding can't be told from the rest.
void warn_of_padding(Catalog& source, const Numbers& numbers);

// The only arithmetic that dialects need is not exact. `dtype`: of the weights.
void warn_of_rounding(Catalog& source, DType dtype);

// config.json's quantization of weights that are plain numbers.
std::optional<Problem> leftover_quantization(const Catalog& catalog,
                                             const nlohmann::json& config);

// What stands beside the tensors and does not fit them, or each other:
// quantization of weights that are plain numbers, tokens at which
// generation_config.json stops and config.json does not, tokens past the rows
// of the vocabulary. It is carried all the same. `asked`: how many rows there
// are was asked for, and all of a tokenizer is held against them.
void warn_of_leftovers(Catalog& catalog, const Json& config, uint64_t rows,
                       bool asked);

// Completes a config.json made from another dialect's numbers: the tokens that
// begin, end and pad a text come from generation_config.json. Warns of those
// that nothing states, since transformers' classes have defaults for them.
void complete_token_ids(Catalog& catalog, Json& config);

}  // namespace ckpt::families
