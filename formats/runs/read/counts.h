// SPDX-License-Identifier: Apache-2.0
// Whether the parts of a step count the same steps. A trainer that steps its
// optimizer and its scheduler once for each step of its own leaves three
// numbers, and a file of another save has another one:
//
//   trainer_state.json  global_step 500
//   scheduler.pt        last_epoch  500
//   optimizer.pt        step        400   <- of an earlier save
#pragma once

#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::runs {

// Compares them. Files of ranks that count differently are damage. An
// optimizer, scheduler or state of another step is a warning: whoever starts
// an optimizer afresh in the midst of a run leaves such numbers, too. Numbers
// that trainers leave without such a cause are no reason for either: fewer
// steps where a scaler of gradients skips some, more where an optimizer steps
// several times or had a history (docs/formats/runs.md). `catalog` must be
// located and have its objects. Empty if it is no run. Reads the counts, but
// none from other machines.
std::vector<Problem> check_counts(const Catalog& catalog);

}  // namespace ckpt::runs
