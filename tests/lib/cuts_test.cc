// SPDX-License-Identifier: Apache-2.0
// How ranks share a dimension: against brute force over all small shapes,
// dealing out the indexes themselves, and against numbers from torch.chunk.
#include "lib/cuts.h"

#include <doctest/doctest.h>

#include <algorithm>

namespace ckpt::cuts {
namespace {

using Indexes = std::vector<uint64_t>;

// What a part holds, element by element. `local` must number them.
Indexes indexes(const Runs& runs) {
  Indexes all;
  for (const Run& run : runs) {
    CHECK(run.local == all.size());
    for (uint64_t i = 0; i < run.count; ++i) all.push_back(run.whole + i);
  }
  CHECK(count_of(runs) == all.size());
  return all;
}

// Lists of ceil(n / ranks), handed to one rank after the other.
Indexes dealt(const Indexes& from, uint64_t ranks, uint64_t rank) {
  uint64_t each = 0;
  while (each * ranks < from.size()) ++each;
  Indexes mine;
  for (uint64_t i = rank * each; i < (rank + 1) * each; ++i)
    if (i < from.size()) mine.push_back(from[i]);
  return mine;
}

Indexes from_to(uint64_t begin, uint64_t end) {
  Indexes all;
  for (; begin < end; ++begin) all.push_back(begin);
  return all;
}

TEST_CASE("cuts: chunk is torch.chunk") {
  struct Row {
    uint64_t rows, ranks;
    std::vector<uint64_t> counts;
  };
  const Row rows[] = {
      {37, 3, {13, 13, 11}}, {10, 3, {4, 4, 2}},
      {2, 3, {1, 1, 0}},     {5, 4, {2, 2, 1, 0}},
      {6, 4, {2, 2, 2, 0}},  {1, 1, {1}},
      {0, 2, {0, 0}},        {10, 8, {2, 2, 2, 2, 2, 0, 0, 0}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.rows);
    uint64_t at = 0;
    for (uint64_t rank = 0; rank < row.ranks; ++rank) {
      const Range got = chunk(row.rows, row.ranks, rank);
      CHECK(got.count() == row.counts[rank]);
      CHECK(got.begin == std::min(at, row.rows));
      at = got.end;
    }
  }
  CHECK(chunk(UINT64_MAX, 2, 1).end == UINT64_MAX);
  CHECK(chunk(3, UINT32_MAX, UINT32_MAX - 1).count() == 0);
}

TEST_CASE("cuts: chunks of groups, for all sizes, groups and ranks to 7") {
  for (uint64_t groups = 1; groups <= 7; ++groups)
    for (uint64_t width = 0; width <= 7; ++width)
      for (uint64_t ranks = 1; ranks <= 7; ++ranks) {
        Indexes seen;
        for (uint64_t rank = 0; rank < ranks; ++rank) {
          Indexes want;
          for (uint64_t g = 0; g < groups; ++g)
            std::ranges::copy(
                dealt(from_to(g * width, (g + 1) * width), ranks, rank),
                std::back_inserter(want));
          const Indexes got =
              indexes(chunks(groups * width, groups, ranks, rank));
          CHECK(got == want);
          std::ranges::copy(got, std::back_inserter(seen));
        }
        std::ranges::sort(seen);
        CHECK(seen == from_to(0, groups * width));
      }
}

TEST_CASE("cuts: equal segments, each held by as many ranks as it repeats") {
  for (const uint32_t ranks : {1u, 2u, 4u, 6u})
    for (uint32_t first = 1; first <= ranks; ++first)
      for (uint32_t second = 1; second <= ranks; ++second)
        for (uint64_t a = 0; a <= 3; ++a)
          for (uint64_t b = 0; b <= 3; ++b) {
            if (ranks % first != 0 || ranks % second != 0) continue;
            const Segment segments[] = {{a * (ranks / first), first},
                                        {b * (ranks / second), second}};
            std::vector<uint32_t> times(segments[0].size + segments[1].size);
            for (uint32_t rank = 0; rank < ranks; ++rank) {
              const Indexes got = indexes(equal(segments, ranks, rank));
              CHECK(got.size() == a + b);
              for (const uint64_t i : got) ++times.at(i);
              // A run belongs to the rank's group of neighbours.
              if (a != 0) CHECK(got[0] == rank / first * a);
              if (b != 0) CHECK(got[a] == segments[0].size + rank / second * b);
            }
            for (uint64_t i = 0; i < times.size(); ++i)
              CHECK(times[i] == (i < segments[0].size ? first : second));
          }
}

TEST_CASE("cuts: rows of FSDP ranks of what tp leaves, for all small shapes") {
  for (uint64_t groups = 1; groups <= 3; ++groups)
    for (uint64_t width = 0; width <= 5; ++width)
      for (uint64_t tp = 1; tp <= 4; ++tp)
        for (uint64_t dp = 1; dp <= 5; ++dp) {
          Indexes seen;
          for (uint64_t t = 0; t < tp; ++t) {
            const Runs part = chunks(groups * width, groups, tp, t);
            for (uint64_t d = 0; d < dp; ++d) {
              const Indexes got =
                  indexes(slice(part, chunk(count_of(part), dp, d)));
              CHECK(got == dealt(indexes(part), dp, d));
              std::ranges::copy(got, std::back_inserter(seen));
            }
          }
          std::ranges::sort(seen);
          CHECK(seen == from_to(0, groups * width));
        }
}

TEST_CASE("cuts: any range of a part") {
  const Segment segments[] = {{8, 1}, {0, 1}, {4, 2}, {4, 2}};
  const Runs part = equal(segments, 2, 1);
  const Indexes all = indexes(part);
  CHECK(all == Indexes{4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
  for (uint64_t begin = 0; begin <= all.size(); ++begin)
    for (uint64_t end = begin; end <= all.size() + 2; ++end) {
      const uint64_t stop = std::min<uint64_t>(end, all.size());
      CHECK(indexes(slice(part, {begin, end})) ==
            Indexes(all.begin() + static_cast<ptrdiff_t>(begin),
                    all.begin() + static_cast<ptrdiff_t>(stop)));
    }
}

TEST_CASE("cuts: boxes of a tensor") {
  const auto found = parts({2, 8, 3}, 1, chunks(8, 2, 2, 1));
  REQUIRE(found.size() == 2);
  CHECK(found[0].box == Box{{0, 2, 0}, {2, 2, 3}});
  CHECK(found[0].at == Dims{0, 0, 0});
  CHECK(found[1].box == Box{{0, 6, 0}, {2, 2, 3}});
  CHECK(found[1].at == Dims{0, 2, 0});
  CHECK(whole({2, 3}).box == Box::whole({2, 3}));
}

}  // namespace
}  // namespace ckpt::cuts
