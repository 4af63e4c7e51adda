// SPDX-License-Identifier: Apache-2.0
// Joins dimensions that no piece splits.
#pragma once

#include <vector>

#include "reshard/placed.h"

namespace ckpt::reshard {

// Rewrites shape and boxes with as few dimensions as possible, at least one.
// Two neighbouring dimensions are joined if every box holds the inner one whole
// and steps through both with one stride.
void collapse(Shape& shape, std::vector<Placed>& sources,
              std::vector<Placed>& targets);

// Cuts sources along short dimensions that they don't step through in the
// tensor's order. The dimensions inside can then be joined: interleaved rows,
// [half, 2, width] in steps of (width, half * width, 1), become two boxes, each
// a matrix.
void cut_short_dims(const Shape& shape, std::vector<Placed>& sources);

}  // namespace ckpt::reshard
