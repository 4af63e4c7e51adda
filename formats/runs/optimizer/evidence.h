// SPDX-License-Identifier: Apache-2.0
// What the shapes of an optimizer's states say about each parameter's shape.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "ckpt/catalog.h"
#include "formats/runs/optimizer/optimizer.h"
#include "formats/runs/optimizer/split.h"

namespace ckpt::runs {

// The shapes of each number's states; `odd` is a number whose states disagree.
struct Evidence {
  std::map<uint64_t, Wanted> shapes;
  std::optional<uint64_t> odd;
};

Evidence evidence_of(const Catalog& catalog, const Range& range,
                     const Groups& groups);

}  // namespace ckpt::runs
