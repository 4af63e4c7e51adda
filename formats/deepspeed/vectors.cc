// SPDX-License-Identifier: Apache-2.0
#include "formats/deepspeed/vectors.h"

#include <algorithm>

#include "lib/cuts.h"

namespace ckpt::deepspeed {

Vector partition_of(const Parameters& group, uint32_t rank, uint32_t ranks) {
  uint64_t total = 0;
  for (const NamedShape& one : group) total += one.numel;
  const uint64_t unit = uint64_t{2} * ranks;
  Vector vector;
  vector.size = (total + unit - 1) / unit * 2;
  const uint64_t first = rank * vector.size;
  const uint64_t last = first + vector.size;
  uint64_t at = 0;
  for (const NamedShape& one : group) {
    const uint64_t begin = std::max(at, first);
    const uint64_t end = std::min(at + one.numel, last);
    if (begin < end) {
      vector.runs.push_back({&one, {begin - at, end - at}, begin - first});
      vector.used = end - first;
    }
    at += one.numel;
  }
  return vector;
}

uint64_t part_size(const NamedShape& parameter, uint32_t ranks) {
  return cuts::chunk_size(parameter.numel, ranks);
}

Vector parts_of(const Parameters& group, uint32_t rank, uint32_t ranks) {
  Vector vector;
  for (const NamedShape& one : group) {
    const uint64_t part = part_size(one, ranks);
    const auto [begin, end] = cuts::chunk(one.numel, ranks, rank);
    if (begin < end) {
      vector.runs.push_back({&one, {begin, end}, vector.size});
      vector.used = vector.size + (end - begin);
    }
    vector.size += part;
  }
  return vector;
}

std::vector<Parameters> sub_groups(const Parameters& group, uint64_t size,
                                   uint32_t ranks) {
  uint64_t total = 0;
  for (const NamedShape& one : group) total += part_size(one, ranks);
  if (size >= total) return {group};
  std::vector<Parameters> all;
  Parameters now;
  uint64_t have = 0;
  for (const NamedShape& one : group) {
    now.push_back(one);
    have += part_size(one, ranks);
    if (have < size && &one != &group.back()) continue;
    all.push_back(std::move(now));
    now.clear();
    have = 0;
  }
  return all;
}

}  // namespace ckpt::deepspeed
