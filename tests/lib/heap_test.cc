// SPDX-License-Identifier: Apache-2.0
#include "lib/heap.h"

#include <doctest/doctest.h>

namespace ckpt {

// Nothing counts in this program: what is taken is said here.
TEST_CASE("heap: small blocks pass a bound by a MiB, large ones by nothing") {
  constexpr size_t kBound = size_t{1} << 30;
  constexpr size_t kSmall = 64, kMib = 1 << 20;
  heap::took(kBound - heap::kLeast);
  {
    const heap::Bound bound(kBound);
    CHECK(heap::has_room(heap::kLeast));
    CHECK_FALSE(heap::has_room(heap::kLeast + 1));
    heap::took(kMib);
    CHECK(heap::has_room(kSmall));
    CHECK_FALSE(heap::has_room(heap::kLeast));
    heap::took(kMib);
    CHECK_FALSE(heap::has_room(kSmall));
    const heap::Unbounded any;
    CHECK(heap::has_room(kSmall));
  }
  CHECK(heap::has_room(kSmall));
  heap::gave(kBound - heap::kLeast + 2 * kMib);
}

}  // namespace ckpt
