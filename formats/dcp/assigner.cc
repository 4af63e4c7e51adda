// SPDX-License-Identifier: Apache-2.0
#include "formats/dcp/assigner.h"

#include <algorithm>
#include <limits>

namespace ckpt::dcp {

uint32_t Assigner::take(const Cutter::Replicas& among, uint64_t bytes) {
  uint32_t best = among.first;
  for (uint32_t i = 1; i < among.count; ++i) {
    const uint32_t rank = among.first + i * among.step;
    if (sizes_[rank] < sizes_[best]) best = rank;
  }
  add(best, bytes);
  return best;
}

uint32_t Assigner::take(std::span<const uint32_t> among, uint64_t bytes) {
  const uint32_t best = *std::ranges::min_element(
      among, {}, [&](uint32_t rank) { return sizes_[rank]; });
  add(best, bytes);
  return best;
}

void Assigner::add(uint32_t rank, uint64_t bytes) {
  uint64_t& size = sizes_[rank];
  size = checked_add(size, std::max<uint64_t>(bytes, 1))
             .value_or(std::numeric_limits<uint64_t>::max());
}

}  // namespace ckpt::dcp
