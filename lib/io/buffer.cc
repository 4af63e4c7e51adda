// SPDX-License-Identifier: Apache-2.0
#include "lib/io/buffer.h"

#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#include "ckpt/error.h"
#include "lib/io/huge_pages.h"

namespace ckpt::io {
namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;

}  // namespace

// Huge pages begin at multiples of their size, so one more is mapped than
// needed. Untouched pages take no memory.
Buffer::Buffer(uint64_t bytes) {
  const bool huge = bytes >= kHugePage;
  mapped_ = bytes + (huge ? kHugePage : 0);
  mapping_ = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping_ == MAP_FAILED)
    throw resource_error({}, "no memory for a buffer of {} bytes", bytes)
        .with_hint("use fewer --threads, or a smaller --max-mem");
  const auto at = reinterpret_cast<uintptr_t>(mapping_);
  const uintptr_t skip = huge ? (kHugePage - at % kHugePage) % kHugePage : 0;
  data_ = static_cast<std::byte*>(mapping_) + skip;
  if (huge) ::madvise(data_, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
}

Buffer::~Buffer() { ::munmap(mapping_, mapped_); }

void prefer_huge_pages(void* begin, size_t bytes) {
  const auto at = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t first = (at + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t last = (at + bytes) / kHugePage * kHugePage;
  if (first < last)
    ::madvise(static_cast<std::byte*>(begin) + (first - at), last - first,
              MADV_HUGEPAGE);
}

// glibc cuts the next blocks from what is freed at the end of the heap, if
// blocks of that size come from the heap and it is not trimmed.
void expect_small_blocks([[maybe_unused]] size_t bytes) {
#ifdef __GLIBC__
  constexpr size_t kMost = size_t{32} << 20;  // glibc's own limit
  if (bytes < 2 * kHugePage) return;
  bytes = std::min(bytes, kMost - kHugePage);
  if (!::mallopt(M_MMAP_THRESHOLD, kMost) ||
      !::mallopt(M_TRIM_THRESHOLD, 2 * kMost))
    return;
  void* const block = std::malloc(bytes);
  if (block) prefer_huge_pages(block, bytes);
  std::free(block);
#endif
}

}  // namespace ckpt::io
