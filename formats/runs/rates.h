// SPDX-License-Identifier: Apache-2.0
// The learning rates of an optimizer's groups, and those that its scheduler set
// last: whoever saves both saves the same ones. Unlike counts of steps they
// tell whatever optimizer and trainer it is.
//
//   scheduler.pt  _last_lr      [0.0004]
//   optimizer.pt  param_groups  lr 0.0007   <- of another save
#pragma once

#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::runs {

// A warning for a scheduler that set rates which no optimizer of its role has.
// `catalog` must have its objects, and be a run whose optimizer and scheduler
// are in files of their own.
std::vector<Problem> check_rates(const Catalog& catalog);

}  // namespace ckpt::runs
