// SPDX-License-Identifier: Apache-2.0
// Differences for people: one line for each pattern of names.
#pragma once

#include <string>
#include <vector>

#include "ckpt/check.h"
#include "convert/config/facts.h"

namespace ckpt::app {

// How far the tensors of a pattern are apart together ("layers.#.mlp.w1").
struct PatternDistance {
  std::string name;
  uint64_t tensors = 0;
  Distance sum;
};
// Of those that have a distance, the largest relative_l2 first.
std::vector<PatternDistance> pattern_distances(
    const std::vector<Difference>& differences);

//   values                              relative L2  differ  at most …
//   ! layers.{0-31}.mlp.up_proj.weight  ×32   0.012  all of 1.4 B   0.03 …
//   - layers.31.extra.weight                 only in A: f32 [4, 4]
//
// `width` 0: as wide as it is.
std::string differences_text(const std::vector<Difference>& differences,
                             const std::vector<families::FactDifference>& facts,
                             size_t width);

}  // namespace ckpt::app
