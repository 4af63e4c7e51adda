// SPDX-License-Identifier: Apache-2.0
#include "lib/io/read_queue.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "ckpt/error.h"
#include "tests/support/temp_file.h"

namespace ckpt::io {
namespace {

constexpr uint64_t kBlock = 64 << 10;

std::string random_bytes(std::mt19937& random, size_t count) {
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

bool equal(const std::vector<std::byte>& got, std::string_view wanted) {
  return std::ranges::equal(got, std::as_bytes(std::span(wanted)));
}

// The read-ahead depths that can be tried on this machine.
std::vector<uint32_t> depths() {
  if (ReadQueue::has_ring()) return {0, 1, 3, 8};
  MESSAGE("no io_uring here: only reads without it are tried");
  return {0};
}

struct Range {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

}  // namespace

TEST_CASE("read queue: any ranges, wanted or not, in turn or not") {
  std::mt19937 random(7);
  const std::string content = random_bytes(random, 700'001);
  const test::TempFile temp(content);
  const auto file = DirectFile::open(temp.path);
  if (!file) {
    MESSAGE("no direct reads on the file system of " << temp.path);
    return;
  }
  for (const uint32_t ahead : depths())
    for (int round = 0; round < 40; ++round) {
      CAPTURE(ahead);
      CAPTURE(round);
      ReadQueue queue(ahead, kBlock);
      std::vector<Range> ranges(1 + random() % 30);
      for (Range& range : ranges) {
        range.bytes = 1 + random() % kBlock;
        range.offset = random() % (content.size() - range.bytes + 1);
        if (random() % 8 != 0) queue.want(file, range.offset, range.bytes);
      }
      if (round % 3 == 1) std::ranges::shuffle(ranges, random);
      if (round % 3 == 2) ranges.resize(ranges.size() / 2);
      for (const Range& range : ranges) {
        std::vector<std::byte> buffer(range.bytes);
        if (!queue.take(file, range.offset, buffer))
          queue.read(*file, range.offset, buffer);
        CHECK(equal(buffer, std::string_view(content).substr(range.offset,
                                                             range.bytes)));
      }
    }
}

TEST_CASE("read queue: what is read in turn was read ahead") {
  if (!ReadQueue::has_ring()) return;
  std::mt19937 random(8);
  const test::TempFile temp(random_bytes(random, 10 * kBlock));
  const auto file = DirectFile::open(temp.path);
  if (!file) return;
  ReadQueue queue(4, kBlock);
  std::vector<std::byte> buffer(kBlock);
  for (uint64_t i = 0; i < 10; ++i) queue.want(file, i * kBlock, kBlock);
  for (uint64_t i = 0; i < 10; ++i) CHECK(queue.take(file, i * kBlock, buffer));
  CHECK_FALSE(queue.take(file, 0, buffer));
}

TEST_CASE("read queue: a range longer than a slot") {
  std::mt19937 random(9);
  const std::string content = random_bytes(random, 5 * kBlock);
  const test::TempFile temp(content);
  const auto file = DirectFile::open(temp.path);
  if (!file) return;
  ReadQueue queue(0, kBlock);
  std::vector<std::byte> buffer(4 * kBlock + 3);
  queue.read(*file, 1001, buffer);
  CHECK(equal(buffer, std::string_view(content).substr(1001, buffer.size())));
}

TEST_CASE("read queue: a file that ends too early says where") {
  const test::TempFile temp(std::string(100'000, 'x'));
  const auto file = DirectFile::open(temp.path);
  if (!file) return;
  std::vector<std::byte> buffer(1000);
  for (const uint32_t ahead : depths()) {
    ReadQueue queue(ahead, kBlock);
    queue.want(file, 99'500, 1000);
    const auto read = [&] {
      if (!queue.take(file, 99'500, buffer)) queue.read(*file, 99'500, buffer);
    };
    CHECK_THROWS_WITH_AS(
        read(),
        (temp.path + ": file ends at byte 100000, wanted bytes 99500-100500")
            .c_str(),
        Error);
  }
  CHECK_THROWS_AS(DirectFile::open(temp.path + ".none"), Error);
  CHECK_THROWS_AS(DirectFile::open(temp.dir.path), Error);
}

TEST_CASE("read queue: a file that shrinks while it is read") {
  for (const uint32_t ahead : depths()) {
    const test::TempFile temp(std::string(8 * kBlock, 'x'));
    const auto file = DirectFile::open(temp.path);
    if (!file) return;
    ReadQueue queue(ahead, kBlock);
    std::filesystem::resize_file(temp.path, kBlock / 2);
    std::vector<std::byte> buffer(kBlock);
    queue.want(file, 4 * kBlock, kBlock);
    const auto read = [&] {
      if (!queue.take(file, 4 * kBlock, buffer))
        queue.read(*file, 4 * kBlock, buffer);
    };
    CHECK_THROWS_AS(read(), Error);
  }
}

}  // namespace ckpt::io
