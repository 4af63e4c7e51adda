// SPDX-License-Identifier: Apache-2.0
#include "reshard/plan/tiles.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace ckpt::reshard {
namespace {

// Strides of a permuted view: dimension order[0] varies fastest.
Dims strides_of(const Dims& shape, const std::vector<size_t>& order,
                uint64_t element, uint64_t gap) {
  Dims strides(shape.size(), 0);
  uint64_t stride = element * gap;
  for (const size_t d : order) {
    strides[d] = stride;
    stride *= shape[d];
  }
  return strides;
}

// For every element of the tile, its offset in the file.
void each_offset(const Gather& gather, const Dims& begin, const Dims& shape,
                 std::multiset<uint64_t>& offsets) {
  Dims index(shape.size(), 0);
  while (true) {
    Dims at = begin;
    for (size_t d = 0; d < at.size(); ++d) at[d] += index[d];
    offsets.insert(dot(at, gather.source_strides));
    size_t d = shape.size();
    while (d-- > 0) {
      if (++index[d] < shape[d]) break;
      index[d] = 0;
    }
    if (d == SIZE_MAX) return;
  }
}

void check(const Gather& gather, Tiles::Room room) {
  std::multiset<uint64_t> all, seen;
  each_offset(gather, Dims(gather.shape.size(), 0), gather.shape, all);
  Tiles tiles(gather, room);
  Dims begin, shape;
  size_t wrong = 0;
  while (tiles.next(begin, shape)) {
    std::multiset<uint64_t> own;
    each_offset(gather, begin, shape, own);
    const uint64_t span = *own.rbegin() - *own.begin() + room.element;
    wrong += span != span_of(gather, shape, room.element);
    wrong += span > room.span || own.size() > room.count;
    seen.merge(own);
  }
  CHECK(wrong == 0);
  CHECK(seen == all);  // each element once
}

}  // namespace

TEST_CASE("tiles: all small shapes, orders and rooms; each element once") {
  constexpr uint64_t kElement = 2;
  for (uint64_t a = 1; a <= 4; ++a)
    for (uint64_t b = 1; b <= 3; ++b)
      for (uint64_t c = 1; c <= 3; ++c)
        for (const uint64_t gap : {1, 3}) {
          std::vector<size_t> order{0, 1, 2};
          do {
            Gather gather;
            gather.shape = {a, b, c};
            gather.source_strides =
                strides_of(gather.shape, order, kElement, gap);
            for (const uint64_t span : {kElement, uint64_t{7}, uint64_t{40}})
              for (const uint64_t count : {1, 3, 100})
                check(gather,
                      {.element = kElement, .span = span, .count = count});
          } while (std::ranges::next_permutation(order).found);
        }
}

TEST_CASE("tiles: an empty box has none; lanes") {
  Gather gather;
  gather.shape = {3, 0};
  gather.source_strides = {2, 6};
  Tiles tiles(gather, {.element = 2, .span = 64, .count = 8});
  Dims begin, shape;
  CHECK_FALSE(tiles.next(begin, shape));
  // A quarter of a row: the least that is still read as a block.
  CHECK(is_dense({.row_stride = 16, .width = 4}));
  CHECK_FALSE(is_dense({.row_stride = 16, .width = 3}));
  CHECK(bytes_per_row({.row_stride = 16, .width = 4}) == 16);
  CHECK(bytes_per_row({.row_stride = 16, .width = 3}) == 3);
  CHECK(bytes_per_row({.row_stride = 0, .width = 3}) == 3);
}

}  // namespace ckpt::reshard
