// SPDX-License-Identifier: Apache-2.0
// Differences for people: one line for each pattern of names.
#pragma once

#include <string>
#include <vector>

#include "ckpt/check.h"
#include "convert/facts.h"

namespace ckpt::app {

//   ! layers.{0-31}.mlp.up_proj.weight  ×32  1.2 M of 1.4 B differ, at most …
//   - layers.31.extra.weight                 only in A: f32 [4, 4]
//
// `width` 0: as wide as it is.
std::string differences_text(const std::vector<Difference>& differences,
                             const std::vector<families::FactDifference>& facts,
                             size_t width);

}  // namespace ckpt::app
