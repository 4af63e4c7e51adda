// SPDX-License-Identifier: Apache-2.0
// What a user should know of a conversion that went through.
#pragma once

#include <cstdint>

#include "ckpt/catalog.h"
#include "models/numbers.h"

namespace ckpt::families {

// Rows that pad the vocabulary are not told from others where Megatron's args
// don't say how many are in use.
void warn_of_padding(Catalog& source, const Numbers& numbers);

// The one arithmetic that dialects need is not exact. `dtype`: of the weights.
void warn_of_rounding(Catalog& source, DType dtype);

// What stands beside the tensors and does not fit them, or each other:
// quantization of weights that are plain numbers, tokens at which
// generation_config.json stops and config.json does not, tokens past the rows
// of the vocabulary. It is carried all the same. `asked`: how many rows there
// are was asked for, and all of a tokenizer is held against them.
void warn_of_leftovers(Catalog& catalog, const Json& config, uint64_t rows,
                       bool asked);

// A config.json that was made of another dialect's numbers: tokens that begin,
// end and pad a text come from generation_config.json; what nothing says is
// warned of, since transformers' classes have values of their own.
void complete_token_ids(Catalog& catalog, Json& config);

}  // namespace ckpt::families
