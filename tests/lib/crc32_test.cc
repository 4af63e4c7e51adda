// SPDX-License-Identifier: Apache-2.0
#include "lib/hash/crc32.h"

#include <doctest/doctest.h>
#include <zlib.h>

#include <random>
#include <vector>

namespace ckpt {
namespace {

uint32_t zlib_crc(std::span<const std::byte> bytes) {
  return static_cast<uint32_t>(
      ::crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

}  // namespace

TEST_CASE("crc32: zlib's numbers, in one part or in many") {
  CHECK(crc32(0, {}) == 0);
  CHECK(crc32(0, std::as_bytes(std::span("123456789", 9))) == 0xCBF43926);

  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::byte> bytes(random() % 5000);
    for (auto& b : bytes) b = static_cast<std::byte>(random());
    const std::span<const std::byte> all(bytes);
    const uint32_t expected = zlib_crc(all);
    CHECK(crc32(0, all) == expected);
    const size_t cut = random() % (bytes.size() + 1);
    CHECK(crc32(crc32(0, all.first(cut)), all.subspan(cut)) == expected);

    uint32_t sum = 0;  // of parts, the last one first
    for (size_t end = bytes.size(); end > 0;) {
      const size_t begin = end - (1 + random() % end);
      sum ^= crc32_contribution(crc32(0, all.subspan(begin, end - begin)),
                                bytes.size() - end);
      end = begin;
    }
    CHECK(sum == expected);
  }
}

TEST_CASE("crc32_contribution: zlib's crc32_combine, however far") {
  std::mt19937_64 random(2);
  for (int round = 0; round < 2000; ++round) {
    const auto crc = static_cast<uint32_t>(random());
    const uint64_t after = random() >> (1 + random() % 63);
    CAPTURE(after);
    CHECK(crc32_contribution(crc, after) ==
          crc32_combine64(crc, 0, static_cast<z_off64_t>(after)));
  }
}

}  // namespace ckpt
