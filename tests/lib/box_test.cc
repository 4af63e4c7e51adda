// SPDX-License-Identifier: Apache-2.0
#include "ckpt/box.h"

#include <doctest/doctest.h>

#include <random>

namespace ckpt {

TEST_CASE("dims: short and long lists copy, move and compare") {
  Dims a{1, 2, 3, 4};
  Dims b = a;
  b.push_back(5);
  CHECK(a == Dims{1, 2, 3, 4});
  CHECK(b == Dims{1, 2, 3, 4, 5});
  Dims c = std::move(b);
  CHECK(c.size() == 5);
  CHECK(b.empty());
  b = c;
  CHECK(b == c);
  a = std::move(c);
  CHECK(a == b);
  CHECK(to_string(a) == "[1, 2, 3, 4, 5]");
}

TEST_CASE("element_count: overflow counts even before a zero") {
  CHECK(element_count({}) == 1);
  CHECK(element_count({3, 0}) == 0);
  CHECK(element_count({0, uint64_t{1} << 40, uint64_t{1} << 40}) == 0);
  CHECK(!element_count({uint64_t{1} << 40, uint64_t{1} << 40, 0}));
}

TEST_CASE("cut: parts cover a flat range exactly, in order") {
  std::mt19937_64 random(7);
  for (int round = 0; round < 2000; ++round) {
    const size_t rank = random() % 5;
    Box box{Dims(rank, 0), Dims(rank, 0)};
    for (size_t d = 0; d < rank; ++d) {
      box.offset[d] = random() % 4;
      box.shape[d] = 1 + random() % 5;
    }
    const uint64_t n = volume(box);
    const uint64_t begin = random() % (n + 1);
    const uint64_t end = begin + random() % (n - begin + 1);
    uint64_t at = 0;
    const auto parts = cut(box, {begin, end});
    CHECK(parts.size() <= std::max<size_t>(1, 2 * rank));
    const Dims strides = row_major_strides(box.shape);
    for (const FlatPart& part : parts) {
      CHECK(part.at == at);
      uint64_t first = 0;
      for (size_t d = 0; d < rank; ++d) {
        CHECK(part.box.offset[d] >= box.offset[d]);
        CHECK(part.box.offset[d] + part.box.shape[d] <=
              box.offset[d] + box.shape[d]);
        first += (part.box.offset[d] - box.offset[d]) * strides[d];
      }
      CHECK(first == begin + at);
      at += volume(part.box);
    }
    CHECK(at == end - begin);
  }
}

}  // namespace ckpt
