// SPDX-License-Identifier: Apache-2.0
// Huge pages (2 MiB) for metadata: the catalog of 100,000 tensors is 70 MiB,
// and to be given that in pages of 4 KiB took a fifth of `inspect`.
#pragma once

#include <cstddef>
#include <vector>

namespace ckpt::io {

// Asks for them where whole ones fit into memory that nobody touched yet. A
// wish: nothing else changes, and the kernel may refuse.
void prefer_huge_pages(void* begin, size_t bytes);

// Many small blocks are about to be allocated, `bytes` in all: the heap grows
// by as much at once (32 MiB at most), in huge pages, and keeps what is freed.
// A wish, too; less than a few huge pages are not worth it.
void expect_small_blocks(size_t bytes);

// Room for `count` elements, in huge pages if it is that much.
template <class T>
void reserve_huge(std::vector<T>& values, size_t count) {
  values.reserve(count);
  prefer_huge_pages(values.data(), count * sizeof(T));
}

}  // namespace ckpt::io
