// SPDX-License-Identifier: Apache-2.0
// What a user should know of a conversion that went through.
#pragma once

#include "ckpt/catalog.h"
#include "models/numbers.h"

namespace ckpt::families {

// Rows that pad the vocabulary are not told from others where Megatron's args
// don't say how many are in use.
void warn_of_padding(Catalog& source, const Numbers& numbers);

// The one arithmetic that dialects need is not exact. `dtype`: of the weights.
void warn_of_rounding(Catalog& source, DType dtype);

}  // namespace ckpt::families
