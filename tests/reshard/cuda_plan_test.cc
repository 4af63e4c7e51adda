// SPDX-License-Identifier: Apache-2.0
// Plans on the CUDA module against the same plans on the processor.
#include <doctest/doctest.h>

#include <algorithm>

#include "reshard/numbers/cast.h"
#include "reshard/numbers/cast_kernel.h"
#include "tests/reshard/cuda_support.h"
#include "tests/support/casts.h"
#include "tests/support/recut.h"

namespace ckpt::reshard {
namespace {

using test::Bytes;
using test::Moved;
using test::Random;
using test::Recut;

// Makes some of the numbers need a cast.
void change_dtype(Random& random, Tensor& tensor) {
  const bool number = std::ranges::count(test::kNumbers, tensor.dtype) > 0;
  if (number && tensor.dtype != DType::bool_ && random() % 2 &&
      (is_float(tensor.dtype) || test::have_torch())) {
    const DType to[] = {DType::f32, DType::bf16, DType::f16, DType::f64,
                        DType::f8_e4m3};
    tensor.dtype = to[random() % 5];
  }
}

void check_same(const Moved& a, const Moved& b) {
  CHECK(a.files == b.files);
  CHECK(a.result.source == b.result.source);
  CHECK(a.result.target == b.result.target);
  CHECK(a.result.bytes_written == b.result.bytes_written);
}

}  // namespace

TEST_CASE("cuda: any pieces to any other pieces, as the processor does it") {
  const CudaModule* module = test::device();
  if (!module) return;
  Random random(20261122);
  for (int round = 0; round < 300; ++round) {
    CAPTURE(round);
    Recut c = test::random_recut(
        random, [&](Tensor& tensor) { change_dtype(random, tensor); });
    const test::TempDir dir;
    test::write_source(c.source, dir);
    RunOptions options;
    options.cast = Caster();
    options.threads = static_cast<uint32_t>(1 + random() % 3);
    options.max_mem = random() % 2 ? uint64_t{1} << 20 : uint64_t{1} << 30;
    const Moved expected = test::move_to_memory(c, options);
    options.device = module;
    check_same(expected, test::move_to_memory(c, options));
  }
}

TEST_CASE("cuda: matrices stored transposed, of every element size") {
  const CudaModule* module = test::device();
  if (!module) return;
  Random random(6);
  for (const DType dtype : {DType::u8, DType::bf16, DType::f32, DType::i64}) {
    for (const bool casts : {false, true}) {
      if (casts && dtype == DType::i64) continue;
      if (casts && dtype == DType::u8 && !test::have_torch()) continue;
      CAPTURE(name(dtype));
      const uint64_t rows = 1 + random() % 300, columns = 1 + random() % 300;
      const uint64_t element = element_size(dtype);
      Tensor tensor{.name = "t", .dtype = dtype, .shape = Shape{rows, columns}};
      const test::TempDir dir;
      const Bytes stored = test::noise(random, rows * columns * element);
      Recut c;
      test::add_file(c.source, dir, stored);
      Piece piece{.box = Box::whole(tensor.shape), .flat = {}, .extent = {}};
      piece.extent = {
          .offset = 0, .strides = Dims{element, rows * element}, .file = 0};
      tensor.pieces = {piece};
      c.source.tensors = {tensor};
      tensor.pieces[0].extent.strides = {};
      if (casts) tensor.dtype = DType::f32;
      if (casts && dtype == DType::f32) tensor.dtype = DType::bf16;
      c.target.catalog.tensors = {tensor};
      c.target.catalog.files = {
          {.size = rows * columns * element_size(tensor.dtype)}};
      test::set_target_files(c.target);
      RunOptions options;
      options.cast = Caster();
      const Moved expected = test::move_to_memory(c, options);
      for (const uint64_t max_mem : {uint64_t{1} << 20, uint64_t{1} << 30}) {
        options.device = module;
        options.max_mem = max_mem;
        check_same(expected, test::move_to_memory(c, options));
      }
    }
  }
}

}  // namespace ckpt::reshard
