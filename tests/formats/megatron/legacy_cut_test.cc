// SPDX-License-Identifier: Apache-2.0
// Ranks' parts as pieces of whole tensors, and back.
#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <numeric>

#include "formats/megatron/legacy/cut.h"
#include "tests/support/assemble.h"
#include "tests/support/temp_file.h"

using namespace ckpt;
using namespace ckpt::megatron;

namespace {

// Whole tensors number their elements, so each part's content is known without
// the code under test.
std::vector<int32_t> counted(size_t size) {
  std::vector<int32_t> values(size);
  std::iota(values.begin(), values.end(), 0);
  return values;
}

// Returns what rank `slot` of `ranks` holds: rows of each group, or columns.
std::vector<int32_t> part_of(uint64_t rows, uint64_t columns,
                             const TpRule& rule, uint64_t slot,
                             uint64_t ranks) {
  std::vector<int32_t> part;
  const auto element = [&](uint64_t r, uint64_t c) {
    part.push_back(static_cast<int32_t>(r * columns + c));
  };
  if (rule.dim == 0) {
    const uint64_t group = rows / rule.groups, size = group / ranks;
    for (uint64_t g = 0; g < rule.groups; ++g)
      for (uint64_t r = 0; r < size; ++r)
        for (uint64_t c = 0; c < columns; ++c)
          element(g * group + slot * size + r, c);
  } else {
    const uint64_t size = columns / ranks;
    for (uint64_t r = 0; r < rows; ++r)
      for (uint64_t c = 0; c < size; ++c) element(r, slot * size + c);
  }
  return part;
}

// Values in a file of the catalog.
class Files {
 public:
  uint32_t add(Catalog& catalog, const std::vector<int32_t>& values) {
    const std::string bytes(reinterpret_cast<const char*>(values.data()),
                            values.size() * sizeof(int32_t));
    temps_.push_back(std::make_unique<test::TempFile>(bytes));
    catalog.files.push_back(
        {.path = temps_.back()->path, .size = bytes.size()});
    return static_cast<uint32_t>(catalog.files.size() - 1);
  }

 private:
  std::vector<std::unique_ptr<test::TempFile>> temps_;
};

std::vector<int32_t> values_of(const std::string& bytes) {
  std::vector<int32_t> values(bytes.size() / sizeof(int32_t));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace

TEST_CASE("legacy parts: joined, they are the whole") {
  struct Row {
    const char* what;
    TpRule rule;
    uint64_t rows, columns, ranks;
  };
  const Row rows[] = {
      {"rows", TpRule::split(0), 12, 5, 4},
      {"columns", TpRule::split(1), 6, 8, 4},
      {"gated rows", TpRule::split(0, 2), 16, 3, 4},
      {"gated rows of two ranks", TpRule::split(0, 2), 12, 7, 2},
      {"one rank", TpRule::split(0, 2), 12, 7, 1},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    Catalog catalog;
    Files files;
    Tensor whole;
    whole.dtype = DType::i32;
    for (uint64_t slot = 0; slot < row.ranks; ++slot) {
      LocalTensor part{
          .dtype = DType::i32,
          .shape = {row.rows, row.columns},
          .extent = {
              .file = files.add(catalog, part_of(row.rows, row.columns,
                                                 row.rule, slot, row.ranks))}};
      if (row.ranks > 1) part.shape[row.rule.dim] /= row.ranks;
      const auto shape = whole_shape(part.shape, row.rule, row.ranks);
      REQUIRE(shape);
      CHECK(*shape == Shape{row.rows, row.columns});
      whole.shape = *shape;
      add_part(whole, part, row.rule, slot, row.ranks);
    }
    CHECK(values_of(test::assemble(catalog, whole)) ==
          counted(row.rows * row.columns));
  }
}

TEST_CASE("legacy parts: cut, they are what each rank holds") {
  const Shape whole = {16, 6};
  for (const uint32_t groups : {1u, 2u}) {
    for (uint64_t slot = 0; slot < 4; ++slot) {
      const TpRule rule = TpRule::split(0, groups);
      const auto expected = part_of(16, 6, rule, slot, 4);
      size_t next = 0;
      for (const cuts::Part& cut : cut_boxes(whole, rule, slot, 4)) {
        CHECK(cut.at[0] * 6 == next);
        for (uint64_t r = 0; r < cut.box.shape[0]; ++r)
          for (uint64_t c = 0; c < 6; ++c)
            CHECK(expected[next++] ==
                  static_cast<int32_t>((cut.box.offset[0] + r) * 6 + c));
      }
      CHECK(next == expected.size());
    }
  }
}

TEST_CASE("legacy parts: shapes that are not parts") {
  CHECK_FALSE(whole_shape({3, 4}, TpRule::split(0, 2), 2));
  CHECK_FALSE(whole_shape({4}, TpRule::split(1), 2));
  CHECK_FALSE(whole_shape({uint64_t{1} << 63}, TpRule::split(0), 4));
  CHECK(whole_shape({3, 4}, TpRule::split(0, 2), 1) == Shape{3, 4});
  CHECK(whole_shape({3}, TpRule::replicated(), 8) == Shape{3});
}

// Elements (s, head, d) of each order, as checkpoint_version defines them.
TEST_CASE("legacy parts: rows of old query_key_value, on each rank") {
  constexpr uint64_t kHn = 3, kColumns = 2;
  for (const uint64_t parts : {uint64_t{3}, uint64_t{2}}) {
    for (const int version : {0, 1}) {
      for (const uint64_t ranks : {uint64_t{1}, uint64_t{2}}) {
        const uint64_t np = 4 / ranks, rows = parts * np * kHn;
        Catalog catalog;
        Files files;
        Tensor whole;
        whole.dtype = DType::i32;
        whole.shape = {rows * ranks, kColumns};
        for (uint64_t slot = 0; slot < ranks; ++slot) {
          std::vector<int32_t> values(rows * kColumns);
          for (uint64_t h = 0; h < np; ++h)
            for (uint64_t s = 0; s < parts; ++s)
              for (uint64_t d = 0; d < kHn; ++d)
                for (uint64_t c = 0; c < kColumns; ++c) {
                  // Its position in version 2, counted over all ranks.
                  const uint64_t now = slot * rows + (h * parts + s) * kHn + d;
                  const uint64_t old = version == 0 ? (s * np + h) * kHn + d
                                                    : (h * kHn + d) * parts + s;
                  values[old * kColumns + c] =
                      static_cast<int32_t>(now * kColumns + c);
                }
          const LocalTensor part{
              .dtype = DType::i32,
              .shape = {rows, kColumns},
              .extent = {.file = files.add(catalog, values)}};
          add_part(whole, part, TpRule::split(0), slot, ranks,
                   {.version = version, .parts = parts, .heads = np});
        }
        CHECK(values_of(test::assemble(catalog, whole)) ==
              counted(rows * ranks * kColumns));
      }
    }
  }
}
