// SPDX-License-Identifier: Apache-2.0
// What a combination of tensors (lib/decoding.h, kCombined) has to know before
// its first element: sums and thresholds over whole tensors.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "lib/decoding.h"

namespace ckpt::reshard {

// A number for each element of a tensor that depends on the seed and on the
// element's index alone, so that it is the same whatever ranks the tensor is
// cut for: splitmix64's output function of both.
inline uint64_t number_of(uint64_t seed, uint64_t index) {
  uint64_t z = (seed ^ index) + 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// True if the delta of that index counts.
inline bool is_kept(const KeptDeltas& kept, uint64_t index, float delta) {
  if (kept.share)
    return static_cast<double>(number_of(kept.seed, index) >> 11) * 0x1p-53 <
           *kept.share;
  const uint32_t size = std::bit_cast<uint32_t>(delta) & 0x7FFFFFFF;
  return size > kept.least || (size == kept.least && index < kept.until);
}

// What is looked for.
struct Measure {
  enum class What : uint8_t {
    kNothing,
    kSlerp,     // the weights of two terms, by the angle between them
    kStock,     // those of all terms, by the angles between their deltas
    kLargest,   // the deltas that are kept are the largest
    kByChance,  // they are what KeptDeltas::share says
  };
  What what = What::kNothing;
  double t = 0.5;                      // kSlerp
  std::vector<double> densities = {};  // kLargest: of each term but the first
  bool rescale = false;  // what is kept gets the sum of magnitudes of all
};

// Reads each tensor, one thread each, and completes its Combination.
void measure(const std::vector<Decoding*>& all, const Measure& measure);

}  // namespace ckpt::reshard
