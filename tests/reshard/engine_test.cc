// SPDX-License-Identifier: Apache-2.0
#include "reshard/engine.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "ckpt/error.h"
#include "reshard/plan/planner.h"
#include "tests/support/recut.h"

namespace ckpt::reshard {
namespace {

using test::Random;
using test::Recut;

void check_digests(const Catalog& source, const RunResult& result) {
  for (size_t i = 0; i < source.tensors.size(); ++i)
    CHECK(result.source[i] == digest(0, test::content_of(source.tensors[i])));
}

}  // namespace

TEST_CASE("engine: any pieces to any other pieces, bytes and digests") {
  Random random(20261121);
  for (int round = 0; round < 400; ++round) {
    CAPTURE(round);
    Recut c = test::random_recut(random);
    const test::TempDir dir;
    test::write_source(c.source, dir);
    RunOptions options;
    options.threads = static_cast<uint32_t>(1 + random() % 3);
    options.max_mem = random() % 2 ? uint64_t{128} << 10 : uint64_t{1} << 30;
    const test::Moved moved = test::move_to_memory(c, options);
    CHECK(moved.files == test::files_of(c.target.catalog));
    check_digests(c.source, moved.result);
  }
}

TEST_CASE("engine: files on disk, with and without their pages left behind") {
  Random random(77);
  for (int round = 0; round < 60; ++round) {
    CAPTURE(round);
    Recut c = test::random_recut(random);
    const test::TempDir dir, out;
    test::write_source(c.source, dir);
    for (const TargetFile& file : c.target.files)
      io::Handle::create(out.file(file.path)).allocate(file.size);
    const Plan plan = make_plan(c.source, c.target);
    Output output(c.target, out.path);
    RunOptions options;
    options.threads = 2;
    options.drop_above = round % 2 ? 1 : UINT64_MAX;
    const RunResult result = run(plan, c.source, output, options);
    const auto wanted = test::files_of(c.target.catalog);
    for (size_t f = 0; f < wanted.size(); ++f) {
      const std::string text = io::read_file(out.file(c.target.files[f].path),
                                             c.target.files[f].size);
      CHECK(std::ranges::equal(std::as_bytes(std::span(text)), wanted[f]));
    }
    CHECK(result.bytes_written == plan.bytes_written);
  }
}

TEST_CASE("engine: pieces that count in a finer grid than the target's") {
  Random random(7);
  for (int round = 0; round < 300; ++round) {
    CAPTURE(round);
    Recut c = test::random_recut(random);
    for (size_t i = 0; i < c.source.tensors.size(); ++i) {
      Tensor& from = c.source.tensors[i];
      Tensor& to = c.target.catalog.tensors[i];
      if (element_size(from.dtype) == 0 || from.shape.size() < 2) continue;
      // Adjacent dimensions that are merged into one in the target.
      Shape shape{from.shape[0]};
      for (size_t d = 1; d < from.shape.size(); ++d) {
        if (random() % 2)
          shape.back() *= from.shape[d];
        else
          shape.push_back(from.shape[d]);
      }
      if (volume(Box::whole(shape)) == 0) continue;
      from.grid = from.shape;
      from.shape = to.shape = shape;
      to.pieces = test::random_pieces(random, shape, random() % 2);
    }
    test::place_randomly(random, c.target.catalog, 2, false);
    test::set_target_files(c.target);
    const test::TempDir dir;
    test::write_source(c.source, dir);
    const test::Moved moved = test::move_to_memory(c, {});
    CHECK(moved.files == test::files_of(c.target.catalog));
    check_digests(c.source, moved.result);
  }
}

TEST_CASE("engine: interleaved rows are written in one sweep of each head") {
  // Stored [head][half][i], wanted [head][i][half]: rotary rows.
  constexpr uint64_t kHeads = 3, kHalf = 10, kWidth = 7;
  for (const bool forward : {true, false}) {
    CAPTURE(forward);
    Tensor tensor{.name = "q",
                  .dtype = DType::bf16,
                  .shape = Shape{kHeads * 2 * kHalf, kWidth}};
    const auto content = test::content_of(tensor);
    std::vector<std::byte> stored(content.size());
    const uint64_t row = kWidth * 2;
    for (uint64_t h = 0; h < kHeads; ++h)
      for (uint64_t i = 0; i < kHalf; ++i)
        for (uint64_t s = 0; s < 2; ++s) {
          const uint64_t apart = h * 2 * kHalf + s * kHalf + i;
          const uint64_t paired = h * 2 * kHalf + 2 * i + s;
          std::memcpy(&stored[(forward ? apart : paired) * row],
                      &content[(forward ? paired : apart) * row], row);
        }
    const test::TempDir dir;
    Recut c;
    test::add_file(c.source, dir, stored);
    Tensor from = tensor;
    from.grid = forward ? Shape{kHeads, kHalf, 2, kWidth}
                        : Shape{kHeads, 2, kHalf, kWidth};
    const Dims strides = forward ? Dims{2 * kHalf * row, row, kHalf * row, 2}
                                 : Dims{2 * kHalf * row, row, 2 * row, 2};
    from.pieces = {{.box = Box::whole(from.grid),
                    .flat = {},
                    .extent = {.strides = strides}}};
    c.source.tensors = {from};
    Tensor to = tensor;
    to.pieces = {{.box = Box::whole(to.shape), .flat = {}, .extent = {}}};
    c.target.catalog.tensors = {to};
    c.target.catalog.files = {{.size = content.size()}};
    test::set_target_files(c.target);
    CHECK(test::move_to_memory(c, {}).files[0] == content);
    const Plan plan = make_plan(c.source, c.target);
    CHECK(plan.gathers.empty());
    CHECK(plan.jobs.size() == (forward ? kHeads : 2 * kHeads));
  }
}

TEST_CASE("engine: reading alone gives the same digests") {
  Random random(5);
  for (int round = 0; round < 100; ++round) {
    Recut c = test::random_recut(random);
    const test::TempDir dir;
    test::write_source(c.source, dir);
    const Plan plan = make_read_plan(c.source, true);
    Output nowhere;
    const RunResult result = run(plan, c.source, nowhere, {});
    CHECK_NOTHROW(check_replicas(plan, result, c.source));
    CHECK(result.bytes_written == 0);
    check_digests(c.source, result);
  }
}

TEST_CASE("engine: strided views come out row-major") {
  // A 30 x 50 matrix of f32 stored transposed, and every other column of it.
  const test::TempDir dir;
  Tensor transposed{.name = "t", .dtype = DType::f32, .shape = Shape{30, 50}};
  const auto content = test::content_of(transposed);
  std::vector<std::byte> stored(content.size());
  for (size_t r = 0; r < 30; ++r)
    for (size_t c = 0; c < 50; ++c)
      std::memcpy(&stored[(c * 30 + r) * 4], &content[(r * 50 + c) * 4], 4);
  Recut c;
  test::add_file(c.source, dir, stored);
  Piece piece{.box = Box::whole(transposed.shape), .flat = {}, .extent = {}};
  piece.extent = {.offset = 0, .strides = Dims{4, 120}, .file = 0};
  transposed.pieces = {piece};
  c.source.tensors = c.target.catalog.tensors = {transposed};
  c.target.catalog.tensors[0].pieces[0].extent.strides = {};
  c.target.catalog.files = {{.size = content.size()}};
  test::set_target_files(c.target);
  const test::Moved moved = test::move_to_memory(c, {});
  CHECK(moved.files[0] == content);
  CHECK(moved.result.source[0] == digest(0, content));
}

TEST_CASE("engine: big-endian, negated and conjugated elements") {
  struct Row {
    DType dtype;
    uint8_t transform;
    std::string_view stored, logical;
  };
  using namespace std::string_view_literals;
  const Row rows[] = {
      {DType::i32, kSwapBytes, "\1\2\3\4"sv, "\4\3\2\1"sv},
      {DType::c64, kSwapBytes, "\1\2\3\4\5\6\7\x8"sv, "\4\3\2\1\x8\7\6\5"sv},
      {DType::f32, kNegate, "\0\0\x80\x3f"sv, "\0\0\x80\xbf"sv},
      {DType::c64, kConjugate, "\0\0\x80\x3f\0\0\x80\x3f"sv,
       "\0\0\x80\x3f\0\0\x80\xbf"sv},
      {DType::bf16, kNegate | kSwapBytes, "\x3f\x80"sv, "\x80\xbf"sv},
      // 0.5 + 1, 2 - 1; 2^-9 + 1 is halfway between bf16s: to the even one
      {DType::bf16, kAddOne, "\0\x3f"sv, "\xc0\x3f"sv},
      {DType::bf16, kAddOne, "\0\x3b"sv, "\x80\x3f"sv},
      {DType::f16, kSubtractOne, "\0\x40"sv, "\0\x3c"sv},
      {DType::f32, kAddOne, "\0\0\x80\x3f"sv, "\0\0\0\x40"sv},
      // log(1) is 0: a decay of -1
      {DType::f32, kNegatedExp, "\0\0\0\0"sv, "\0\0\x80\xbf"sv},
      {DType::bf16, kLogOfNegated, "\x80\xbf"sv, "\0\0"sv},
  };
  for (const Row& row : rows) {
    const test::TempFile file(row.stored);
    Recut c;
    c.source.files = {{.path = file.path, .size = row.stored.size()}};
    Tensor tensor{.name = "t", .dtype = row.dtype, .shape = Shape{1}};
    tensor.pieces = {{.box = Box::whole(tensor.shape),
                      .flat = {},
                      .extent = {},
                      .transform = row.transform}};
    c.source.tensors = {tensor};
    tensor.pieces[0].transform = kNoTransform;
    c.target.catalog.tensors = {tensor};
    c.target.catalog.files = {{.size = row.logical.size()}};
    test::set_target_files(c.target);
    const auto out = test::move_to_memory(c, {}).files[0];
    CHECK(std::string_view(reinterpret_cast<const char*>(out.data()),
                           out.size()) == row.logical);
  }
}

TEST_CASE("engine: replicas that differ are damage, and named") {
  const test::TempFile a("abcdefgh", "a.pt"), b("abcdeXgh", "b.pt");
  Catalog source;
  source.files = {{.path = a.path, .size = 8}, {.path = b.path, .size = 8}};
  Tensor tensor{.name = "norm", .dtype = DType::u8, .shape = Shape{8}};
  for (uint32_t f = 0; f < 2; ++f)
    tensor.pieces.push_back(
        {.box = Box::whole(tensor.shape),
         .flat = {},
         .extent = {.offset = 0, .strides = {}, .file = f}});
  source.tensors = {tensor};
  const Plan plan = make_read_plan(source, true);
  Output nowhere;
  const RunResult result = run(plan, source, nowhere, {});
  CHECK_THROWS_WITH_AS(
      check_replicas(plan, result, source),
      doctest::Contains("norm: this copy differs from the one in"), Error);
}

TEST_CASE("engine: a memory bound that is too small is said") {
  RunOptions options;
  options.max_mem = 1000;
  Output nowhere;
  try {
    run(Plan{}, Catalog{}, nowhere, options);
    FAIL("ran");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kResource);
  }
}

TEST_CASE("engine: bytes on a checksummed record's border are a bug") {
  for (const uint64_t offset : {uint64_t{4}, uint64_t{12}}) {
    CAPTURE(offset);
    TargetFile file{.path = "f", .size = 24};
    file.crcs = {{8, 16, {}}};
    file.literals = {{offset, "12345678"}};
    Target target;
    target.files = {file};
    CHECK_THROWS_WITH_AS(Output(target, "out"),
                         doctest::Contains("a write crosses the record"),
                         Error);
  }
}

}  // namespace ckpt::reshard
