// Joins dimensions that no piece splits.
#pragma once

#include <vector>

#include "reshard/placed.h"

namespace ckpt::reshard {

// Rewrites shape and boxes with as few dimensions as possible, at least one.
// Two neighbours are joined if every box holds the inner one whole and steps
// through both with one stride.
void collapse(Shape& shape, std::vector<Placed>& sources,
              std::vector<Placed>& targets);

}  // namespace ckpt::reshard
