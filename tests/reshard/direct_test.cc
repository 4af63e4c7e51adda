// SPDX-License-Identifier: Apache-2.0
// Reads around the page cache return the same as reads through it. Expectations
// come from the content of random tensors, not from another run.
#include <doctest/doctest.h>

#include <vector>

#include "ckpt/error.h"
#include "lib/io/read_queue.h"
#include "reshard/engine.h"
#include "reshard/plan/planner.h"
#include "reshard/run/caching.h"
#include "tests/support/random_catalog.h"
#include "tests/support/temp_file.h"

namespace ckpt::reshard {
namespace {

using test::Random;

// Tensors of about 100 KiB to 1 MiB, so that reads are long enough.
Tensor large_tensor(Random& random, const std::string& name) {
  Tensor tensor = test::random_tensor(random, name);
  tensor.dtype = random() % 2 ? DType::bf16 : DType::f32;
  tensor.shape = {16 + random() % 64, 1 + random() % 8, 512 + random() % 1024};
  return tensor;
}

// Files on disk that are not in the page cache, where the file system allows
// dropping them.
void write_cold(Catalog& catalog, const test::TempDir& dir) {
  const auto files = test::files_of(catalog);
  for (size_t f = 0; f < files.size(); ++f) {
    catalog.files[f].path = dir.write(
        "f" + std::to_string(f),
        {reinterpret_cast<const char*>(files[f].data()), files[f].size()});
    const io::Handle file = io::Handle::open_write(catalog.files[f].path);
    file.sync();
    file.drop_cache(0, file.size());
  }
}

bool can_read(ReadMode mode, const Catalog& catalog) {
  if (mode == ReadMode::kAuto || mode == ReadMode::kBuffered) return true;
  if (mode == ReadMode::kUring && !io::ReadQueue::has_ring()) return false;
  return io::DirectFile::open(catalog.files[0].path) != nullptr;
}

}  // namespace

TEST_CASE("direct reads: any pieces to any other pieces, in every mode") {
  Random random(20261122);
  size_t tried = 0;
  for (int round = 0; round < 40; ++round) {
    Catalog source;
    Target target;
    for (size_t i = 0; i < 1 + random() % 3; ++i) {
      const Tensor tensor = large_tensor(random, "t" + std::to_string(i));
      source.tensors.push_back(tensor);
      target.catalog.tensors.push_back(tensor);
      source.tensors.back().pieces =
          test::random_pieces(random, tensor.shape, false);
      target.catalog.tensors.back().pieces =
          test::random_pieces(random, tensor.shape, false);
    }
    test::place_randomly(random, source, static_cast<uint32_t>(1 + round % 3),
                         true);
    test::place_randomly(random, target.catalog, 2, false);
    for (const File& file : target.catalog.files)
      target.files.push_back({.size = file.size});
    const auto wanted = test::files_of(target.catalog);
    const Plan plan = make_plan(source, target);
    for (const ReadMode mode : {ReadMode::kAuto, ReadMode::kBuffered,
                                ReadMode::kDirect, ReadMode::kUring}) {
      CAPTURE(round);
      CAPTURE(static_cast<int>(mode));
      const test::TempDir dir;
      write_cold(source, dir);
      if (!can_read(mode, source)) continue;
      RunOptions options;
      options.io = mode;
      options.threads = static_cast<uint32_t>(1 + random() % 2);
      options.block = uint64_t{64 << 10} << random() % 3;
      options.drop_above = round % 2 ? 1 : UINT64_MAX;
      std::vector<std::vector<std::byte>> buffers;
      for (const TargetFile& file : target.files)
        buffers.emplace_back(file.size, std::byte{0x55});
      Output output({buffers.begin(), buffers.end()});
      const RunResult result = run(plan, source, output, options);
      CHECK(buffers == wanted);
      for (size_t i = 0; i < source.tensors.size(); ++i)
        CHECK(result.source[i] ==
              digest(0, test::content_of(source.tensors[i])));
      ++tried;
    }
  }
  MESSAGE(tried << " of 160 runs were possible here");
}

TEST_CASE("direct reads: their memory is a part of the bound") {
  Random random(3);
  Catalog source;
  source.tensors.push_back(large_tensor(random, "t"));
  source.tensors[0].pieces =
      test::random_pieces(random, source.tensors[0].shape, false);
  test::place_randomly(random, source, 1, false);
  const Plan plan = make_read_plan(source, false);
  RunOptions options;
  options.threads = 1;
  const uint64_t buffered = buffer_bytes(plan, options);
  options.io = ReadMode::kUring;
  CHECK(buffer_bytes(plan, options) > buffered);
  options.max_mem = uint64_t{4} << 20;
  CHECK(buffer_bytes(plan, options) <= options.max_mem);
}

TEST_CASE("direct reads: auto has them where a source is read once") {
  if (!io::ReadQueue::has_ring()) return;
  Catalog source;
  Tensor tensor{.name = "t", .dtype = DType::u8, .shape = Shape{80 << 20}};
  tensor.pieces = {{.box = Box::whole(tensor.shape)}};
  source.tensors = {tensor};
  source.files = {{.path = "in", .size = 80 << 20}};
  const Plan plan = make_read_plan(source, false);
  RunOptions options;
  options.threads = 2;
  const uint64_t buffered = buffer_bytes(plan, options);
  options.reads_once = true;
  const uint64_t direct = buffer_bytes(plan, options);
  CHECK(direct > buffered);
  // But not at the price of short blocks.
  options.max_mem = direct;
  CHECK(buffer_bytes(plan, options) == direct);
  options.max_mem = direct - 1;
  CHECK(buffer_bytes(plan, options) == buffered);
  options.max_mem = uint64_t{1} << 30;
  options.io = ReadMode::kBuffered;
  CHECK(buffer_bytes(plan, options) == buffered);
}

TEST_CASE("blocks: all of them together stay in the bound") {
  Random random(5);
  for (int round = 0; round < 2000; ++round) {
    RunOptions options;
    options.max_mem = (uint64_t{1} << 20) + random() % (uint64_t{2} << 30);
    const uint64_t blocks = 1 + random() % 12;
    const auto wanted = static_cast<uint32_t>(1 + random() % 512);
    uint32_t threads = wanted;
    const uint64_t most = uint64_t{64 << 10} << random() % 8;
    const uint64_t block = fit_block(options, blocks, most, threads);
    CHECK(threads >= 1);
    CHECK(threads <= wanted);
    CHECK(block >= 64 << 10);
    CHECK(block <= most);
    CHECK(block * blocks * threads <= options.max_mem);
  }
  RunOptions tiny;
  tiny.max_mem = 100 << 10;
  uint32_t threads = 4;
  CHECK_THROWS_AS(fit_block(tiny, 2, 1 << 20, threads), Error);
}

}  // namespace ckpt::reshard
