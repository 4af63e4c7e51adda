// SPDX-License-Identifier: Apache-2.0
// Files of an earlier save in a step, which show beside the step before:
//
//   checkpoint_9/optimizer.bin  <- the same bytes ->
//   checkpoint_10/optimizer.bin checkpoint_9/model.bin      <- others ->
//   checkpoint_10/model.bin
//
// Every save writes what is trained anew, so no two steps share a file of it,
// unless they share all: then one is a copy of the other.
#pragma once

#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::runs {

// Compares with the nearest step that is on this machine's disk: small files
// whole, large ones in a few places. Returns warnings; none if `catalog` is not
// a step of a run.
std::vector<Problem> check_shared(const Catalog& catalog);

}  // namespace ckpt::runs
