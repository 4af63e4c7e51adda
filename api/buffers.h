// SPDX-License-Identifier: Apache-2.0
// Buffers that a translation left out: their bytes, against what the model's
// numbers make of them.
#pragma once

#include "ckpt/catalog.h"

namespace ckpt::library {

// Proves the entries of catalog.redundant that are not proven yet, and removes
// them from the list. `theta`: the base of rotary frequencies. Throws
// unfaithful_error, naming the element, for one that is not what it has to be.
void prove_buffers(Catalog& catalog, double theta);

}  // namespace ckpt::library
