// SPDX-License-Identifier: Apache-2.0
// Weights as matrices that a Decoding is made from (lib/decoding.h).
#pragma once

#include "ckpt/catalog.h"

namespace ckpt::families {

// Gives `to` the pieces of `from`, each once, as boxes of [batch, rows,
// columns]; `columns` are the last dimension of `from`, and rows may be in any
// order (a grid along them). Sets its shape. Throws unfaithful_error for pieces
// whose rows are not contiguous.
void fold_rows(const Tensor& from, const Catalog& catalog, Tensor& to);

}  // namespace ckpt::families
