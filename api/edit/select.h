// SPDX-License-Identifier: Apache-2.0
// Which tensors of a source take part.
#pragma once

#include "api/edits.h"
#include "ckpt/catalog.h"
#include "ckpt/select.h"

namespace ckpt::library {

// Those of the library know, besides, which tensors the source has by other
// names or in other rows.
struct Chosen : Selected {
  Edits edits;
};
Chosen choose(Catalog& catalog, const Selection& selection);

// Of two checkpoints that are compared: a pattern has to match something in
// one of them.
void select_both(Catalog& a, Catalog& b, const Selection& selection);

}  // namespace ckpt::library
