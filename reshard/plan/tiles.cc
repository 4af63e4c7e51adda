// SPDX-License-Identifier: Apache-2.0
#include "reshard/plan/tiles.h"

#include <tuple>

#include "ckpt/catalog.h"

namespace ckpt::reshard {
namespace {

// The dimension to halve: the one that spreads the tile most over the file or,
// if only the elements are too many, the outermost.
size_t split_dimension(const Gather& gather, const Dims& shape, bool wide) {
  size_t best = 0;
  while (shape[best] == 1) ++best;
  if (!wide) return best;
  for (size_t d = best + 1; d < shape.size(); ++d)
    if ((shape[d] - 1) * gather.source_strides[d] >
        (shape[best] - 1) * gather.source_strides[best])
      best = d;
  return best;
}

}  // namespace

uint64_t dot(const Dims& index, const Dims& strides) {
  uint64_t sum = 0;
  for (size_t d = 0; d < index.size(); ++d) sum += index[d] * strides[d];
  return sum;
}

uint64_t span_of(const Gather& gather, const Dims& shape, uint64_t element) {
  uint64_t span = element;
  for (size_t d = 0; d < shape.size(); ++d)
    span += (shape[d] - 1) * gather.source_strides[d];
  return span;
}

Tiles::Tiles(const Gather& gather, Room room) : gather_(&gather), room_(room) {
  left_.emplace_back(Dims(gather.shape.size(), 0), gather.shape);
}

bool Tiles::next(Dims& begin, Dims& shape) {
  while (!left_.empty()) {
    std::tie(begin, shape) = std::move(left_.back());
    left_.pop_back();
    const uint64_t count = element_count(shape).value_or(UINT64_MAX);
    if (count == 0) continue;
    const bool wide = span_of(*gather_, shape, room_.element) > room_.span;
    if (!wide && count <= room_.count) return true;
    const size_t d = split_dimension(*gather_, shape, wide);
    Dims half = shape, rest = shape, middle = begin;
    half[d] = shape[d] / 2;
    rest[d] = shape[d] - half[d];
    middle[d] += half[d];
    left_.emplace_back(std::move(middle), std::move(rest));
    left_.emplace_back(std::move(begin), std::move(half));
  }
  return false;
}

}  // namespace ckpt::reshard
