// SPDX-License-Identifier: Apache-2.0
// What verify says of tensors that ranks share in a way that no rule explains
// (lib/unruled.h).
#pragma once

#include <vector>

#include "api/engine.h"
#include "ckpt/catalog.h"
#include "ckpt/check.h"

namespace ckpt::library {

// Compares what the ranks hold. What differs is no damage, and nothing shows
// that it is all of a tensor: a warning, and report.open. `quick`: by the
// checksums in headers alone.
void tell_unruled(Catalog& catalog, bool quick, const Engine& engine,
                  Report& report);

// A slice has another shape than the whole: leaves out problems that say so.
void drop_slices(const Catalog& catalog, std::vector<Problem>& problems);

}  // namespace ckpt::library
