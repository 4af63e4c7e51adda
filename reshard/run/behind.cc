// SPDX-License-Identifier: Apache-2.0
#include "reshard/run/behind.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace ckpt::reshard {

void Behind::add(std::vector<Range>& ranges, uint32_t file, uint64_t offset,
                 uint64_t bytes) {
  for (auto range = ranges.rbegin(); range != ranges.rend(); ++range)
    if (range->file == file) {
      range->begin = std::min(range->begin, offset);
      range->end = std::max(range->end, offset + bytes);
      return;
    }
  ranges.push_back({file, offset, offset + bytes});
}

Behind::Work Behind::next() {
  Work work{std::exchange(reads_, {}), writes_, std::exchange(started_, {})};
  started_ = std::exchange(writes_, {});
  return work;
}

uint64_t memory_bytes() {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page = ::sysconf(_SC_PAGE_SIZE);
  if (pages <= 0 || page <= 0) return UINT64_MAX;
  return static_cast<uint64_t>(pages) * static_cast<uint64_t>(page);
}

}  // namespace ckpt::reshard
