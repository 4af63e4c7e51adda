// SPDX-License-Identifier: Apache-2.0
// Selects tensors of a source.
#pragma once

#include <string>
#include <vector>

#include "api/edits.h"
#include "ckpt/catalog.h"
#include "ckpt/select.h"

namespace ckpt::library {

// The public result, and which tensors the source has under other names or in
// other rows.
struct Chosen : Selected {
  Edits edits;
};
Chosen choose(Catalog& catalog, const Selection& selection);

// Keeps the tensors of `part` that a key matches; each must match something in
// `whole`.
void keep_keys(Catalog& part, const std::vector<std::string>& keys,
               const Catalog& whole);

// For a comparison: a pattern must match something in one of the two.
void select_both(Catalog& a, Catalog& b, const Selection& selection);

}  // namespace ckpt::library
