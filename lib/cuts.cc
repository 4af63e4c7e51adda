// SPDX-License-Identifier: Apache-2.0
#include "lib/cuts.h"

#include <algorithm>

namespace ckpt::cuts {

uint64_t count_of(const Runs& runs) {
  return runs.empty() ? 0 : runs.back().local + runs.back().count;
}

uint64_t chunk_size(uint64_t size, uint64_t ranks) {
  return size / ranks + (size % ranks != 0);
}

Range chunk(uint64_t size, uint64_t ranks, uint64_t rank) {
  const uint64_t part = chunk_size(size, ranks);
  // rank * part may overflow, but no rank past the last full chunk needs it.
  const uint64_t begin = part == 0 || rank > size / part ? size : rank * part;
  return {begin, begin + std::min(part, size - begin)};
}

Runs equal(std::span<const Segment> segments, uint64_t ranks, uint64_t rank) {
  Runs runs;
  runs.reserve(segments.size());
  uint64_t begin = 0, local = 0;
  for (const Segment& segment : segments) {
    const uint64_t count = segment.size / (ranks / segment.repeat);
    runs.push_back({begin + rank / segment.repeat * count, local, count});
    begin += segment.size;
    local += count;
  }
  return runs;
}

Runs chunks(uint64_t size, uint64_t groups, uint64_t ranks, uint64_t rank) {
  Runs runs;
  runs.reserve(groups);
  const uint64_t width = size / groups;
  const Range mine = chunk(width, ranks, rank);
  for (uint64_t group = 0; group < groups; ++group)
    runs.push_back(
        {group * width + mine.begin, group * mine.count(), mine.count()});
  return runs;
}

Runs slice(const Runs& runs, const Range& range) {
  Runs sliced;
  for (const Run& run : runs) {
    const uint64_t end = run.local + run.count;
    const uint64_t lo = std::clamp(range.begin, run.local, end);
    const uint64_t hi = std::clamp(range.end, run.local, end);
    if (lo < hi)
      sliced.push_back(
          {run.whole + (lo - run.local), lo - range.begin, hi - lo});
  }
  return sliced;
}

Part whole(const Shape& shape) {
  return {Box::whole(shape), Dims(shape.size(), 0)};
}

std::vector<Part> parts(const Shape& shape, size_t dim, const Runs& runs) {
  std::vector<Part> parts(runs.size(), whole(shape));
  for (size_t i = 0; i < runs.size(); ++i) {
    parts[i].box.offset[dim] = runs[i].whole;
    parts[i].box.shape[dim] = runs[i].count;
    parts[i].at[dim] = runs[i].local;
  }
  return parts;
}

}  // namespace ckpt::cuts
