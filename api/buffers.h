// SPDX-License-Identifier: Apache-2.0
// Checks the bytes of buffers that a translation left out against what the
// model's numbers give.
#pragma once

#include "ckpt/catalog.h"

namespace ckpt::library {

// Proves the entries of catalog.redundant that are not proven yet, and removes
// them from the list. `theta`: the base of rotary frequencies. Throws
// unfaithful_error, naming the element, for one that differs.
void prove_buffers(Catalog& catalog, double theta);

}  // namespace ckpt::library
