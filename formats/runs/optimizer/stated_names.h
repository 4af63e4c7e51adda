// SPDX-License-Identifier: Apache-2.0
// Names of parameters that an optimizer's file states itself ("param_names").
// Private to this room.
#pragma once

#include <span>

#include "formats/runs/optimizer/optimizer.h"

namespace ckpt::runs {

// True if every group has a name for each of its numbers.
bool have_names(const Groups& groups);

// Takes those names; why_not says so if they are not names and shapes of this
// model.
Names by_stated_names(const Catalog& catalog, const Range& range,
                      const Groups& groups,
                      std::span<const Tensor* const> model);

}  // namespace ckpt::runs
