// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "ckpt/error.h"
#include "reshard/plan/plan_size.h"
#include "reshard/plan/planner.h"

namespace ckpt::reshard {
namespace {

Piece box_piece(Dims offset, Dims shape, uint32_t file, uint64_t at) {
  return {.box = {std::move(offset), std::move(shape)},
          .flat = {},
          .extent = {.offset = at, .strides = {}, .file = file}};
}

Tensor matrix(std::vector<Piece> pieces) {
  Tensor tensor{.name = "w", .dtype = DType::u8, .shape = Shape{4, 6}};
  tensor.pieces = std::move(pieces);
  return tensor;
}

Catalog catalog(Tensor tensor) {
  Catalog c;
  c.path = "source";
  c.files.resize(4);
  c.tensors = {std::move(tensor)};
  return c;
}

Target whole_target() {
  Target target;
  target.catalog = catalog(matrix({box_piece({0, 0}, {4, 6}, 0, 0)}));
  target.files = {{.size = 24}};
  target.catalog.files.resize(1);
  return target;
}

}  // namespace

TEST_CASE("plan: refuses what it can't cover exactly, and says why") {
  struct Row {
    std::vector<Piece> pieces;
    const char* why;
  };
  const Row rows[] = {
      {{box_piece({0, 0}, {2, 6}, 0, 0)},
       "w: no piece of the source holds 12 of the 24 elements at [0, 0] of "
       "shape [4, 6]"},
      {{box_piece({0, 0}, {3, 6}, 0, 0), box_piece({2, 0}, {2, 6}, 1, 0)},
       "w: element 12 is stored in two pieces that are not the same"},
      {{box_piece({0, 0}, {4, 4}, 0, 0), box_piece({0, 3}, {4, 3}, 1, 0)},
       "w: element 3 is stored in two pieces that are not the same"},
      {{box_piece({0, 0}, {4, 7}, 0, 0)}, "leaves the tensor's shape [4, 6]"},
      {{box_piece({UINT64_MAX, 0}, {4, 6}, 0, 0)},
       "leaves the tensor's shape [4, 6]"},
      {{}, "holds 24 of the 24 elements"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.why);
    CHECK_THROWS_WITH_AS(make_plan(catalog(matrix(row.pieces)), whole_target()),
                         doctest::Contains(row.why), Error);
  }
}

TEST_CASE("plan: a target that leaves out or doubles bytes is a bug") {
  const Catalog source = catalog(matrix({box_piece({0, 0}, {4, 6}, 0, 0)}));
  Target gap = whole_target();
  gap.files[0].size = 25;
  CHECK_THROWS_WITH_AS(make_plan(source, gap),
                       doctest::Contains("laid out to byte 24 of 25"), Error);
  Target overlap = whole_target();
  overlap.files[0].literals = {{23, "xx"}};
  CHECK_THROWS_WITH_AS(make_plan(source, overlap),
                       doctest::Contains("laid out at byte 23, expected 24"),
                       Error);
  Target half = whole_target();
  half.catalog.tensors[0].pieces = {box_piece({0, 0}, {2, 6}, 0, 0)};
  half.files[0].size = 12;
  CHECK_THROWS_WITH_AS(make_plan(source, half),
                       doctest::Contains("the target takes 12 of 24"), Error);
}

TEST_CASE("plan: tensors on one side only") {
  const Catalog source = catalog(matrix({box_piece({0, 0}, {4, 6}, 0, 0)}));
  Target none = whole_target();
  none.catalog.tensors[0].name = "v";
  CHECK_THROWS_WITH_AS(make_plan(source, none),
                       doctest::Contains("w: has no place in the target"),
                       Error);
  Catalog more = source;
  more.tensors.push_back(more.tensors[0]);
  more.tensors[1].name = "v";
  CHECK_THROWS_AS(make_plan(more, whole_target()), Error);
}

TEST_CASE("plan: rows and columns become the fewest jobs") {
  // Two column shards to two row shards: one job per slab of rows.
  const Catalog source = catalog(matrix(
      {box_piece({0, 0}, {4, 3}, 0, 0), box_piece({0, 3}, {4, 3}, 1, 0)}));
  Target target = whole_target();
  target.catalog.tensors[0].pieces = {box_piece({0, 0}, {2, 6}, 0, 0),
                                      box_piece({2, 0}, {2, 6}, 0, 12)};
  const Plan plan = make_plan(source, target);
  CHECK(plan.jobs.size() == 2);
  CHECK(plan.bytes_read == 24);
  CHECK(plan.bytes_written == 24);
  // Whole to whole is one contiguous copy.
  const Plan copy = make_plan(
      catalog(matrix({box_piece({0, 0}, {4, 6}, 0, 0)})), whole_target());
  CHECK(copy.jobs.size() == 1);
  CHECK(copy.jobs[0].rows == 1);
  CHECK(copy.moves[0].bytes == 24);
}

TEST_CASE("plan: lanes that don't meet are jobs of their own") {
  // Columns in shards of `from` to shards of `to` elements each.
  const auto jobs = [](uint64_t from, uint64_t to) {
    Catalog source = catalog(matrix({}));
    Target target = whole_target();
    target.catalog.tensors[0].pieces.clear();
    source.tensors[0].shape = target.catalog.tensors[0].shape = Shape{4, 12};
    for (uint64_t at = 0; at < 12; at += from)
      source.tensors[0].pieces.push_back(
          box_piece({0, at}, {4, from}, 0, at * 4));
    for (uint64_t at = 0; at < 12; at += to)
      target.catalog.tensors[0].pieces.push_back(
          box_piece({0, at}, {4, to}, 0, at * 4));
    target.files = {{.size = 48}};
    std::vector<std::pair<uint32_t, uint32_t>> lanes;
    const Plan plan = make_plan(source, target);
    for (const Job& job : plan.jobs)
      lanes.emplace_back(job.sources, job.targets);
    return lanes;
  };
  using Lanes = std::vector<std::pair<uint32_t, uint32_t>>;
  CHECK(jobs(6, 3) == Lanes{{1, 2}, {1, 2}});
  CHECK(jobs(3, 6) == Lanes{{2, 1}, {2, 1}});
  CHECK(jobs(3, 2) == Lanes{{2, 3}, {2, 3}});  // meet only at 6
  CHECK(jobs(4, 3) == Lanes{{3, 4}});
}

TEST_CASE("plan: planning is near-linear in pieces") {
  // One long vector, from 20,000 pieces to 15,000 others.
  Tensor tensor{.name = "v", .dtype = DType::u8, .shape = Shape{60'000'000}};
  const auto cut = [&](uint64_t n) {
    std::vector<Piece> pieces;
    const uint64_t part = tensor.shape[0] / n;
    for (uint64_t i = 0; i < n; ++i)
      pieces.push_back(box_piece({i * part}, {part}, 0, i * part));
    return pieces;
  };
  Catalog source;
  source.files.resize(1);
  tensor.pieces = cut(20'000);
  source.tensors = {tensor};
  Target target;
  target.catalog.files.resize(1);
  target.files = {{.size = tensor.shape[0]}};
  tensor.pieces = cut(15'000);
  target.catalog.tensors = {tensor};
  const Plan plan = make_plan(source, target);
  CHECK(plan.moves.size() < 40'000);
  CHECK(plan.bytes_read == tensor.shape[0]);
}

TEST_CASE("plan: jobs that are let go are counted all the same") {
  // Ten tensors of four quarters each, to one target piece each.
  Catalog source = catalog(matrix({}));
  Target target;
  source.tensors.clear();
  for (uint64_t i = 0; i < 10; ++i) {
    Tensor from = matrix({}), to = matrix({});
    from.name = to.name = std::to_string(i);
    for (uint64_t q = 0; q < 4; ++q)
      from.pieces.push_back(box_piece({q / 2 * 2, q % 2 * 3}, {2, 3},
                                      static_cast<uint32_t>(q), i * 6));
    to.pieces.push_back(box_piece({0, 0}, {4, 6}, 0, i * 24));
    source.tensors.push_back(from);
    target.catalog.tensors.push_back(to);
  }
  target.files = {{.size = 240}};
  target.catalog.files.resize(1);
  const Plan plan = make_plan(source, target);
  PlanSize kept, counted;
  kept.add(plan);
  const Plan sums = make_plan_sums(source, target, true, counted, 8);
  CHECK(sums.jobs.size() < plan.jobs.size());
  CHECK(sums.bytes_read == plan.bytes_read);
  CHECK(sums.bytes_written == plan.bytes_written);
  CHECK(sums.tensors.size() == plan.tensors.size());
  CHECK(counted.bytes() == kept.bytes());
  CHECK(counted.jobs == kept.jobs);
  source.tensors[9].pieces.pop_back();
  CHECK_THROWS_WITH_AS(make_plan_sums(source, target, true, counted, 8),
                       doctest::Contains("holds 6 of the 24 elements"), Error);
}

TEST_CASE("plan: a row of many pieces takes no longer for each of them") {
  // The cost of a job must not grow with the number of pieces in its row: when
  // it did, a quarter of a million pieces took minutes.
  constexpr uint64_t kPieces = 250'000;
  Catalog source;
  source.files.resize(1);
  Tensor tensor{.name = "v", .dtype = DType::u8, .shape = Shape{kPieces * 8}};
  for (uint64_t i = 0; i < kPieces; ++i)  // no two of them join
    tensor.pieces.push_back(box_piece({i * 8}, {8}, 0, (kPieces - i) * 8));
  source.tensors = {tensor};
  Target target;
  target.catalog.files.resize(1);
  target.files = {{.size = kPieces * 8}};
  tensor.pieces = {box_piece({0}, {kPieces * 8}, 0, 0)};
  target.catalog.tensors = {tensor};
  CHECK(make_plan(source, target).jobs.size() == kPieces);
}

}  // namespace ckpt::reshard
