// SPDX-License-Identifier: Apache-2.0
#include "lib/hash/digest.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "lib/hash/digest_kernel.h"

namespace ckpt {
namespace {

using Bytes = std::vector<std::byte>;

// The formula from docs/digest.md, word for word.
uint64_t mix(uint64_t x) {
  uint64_t z = x + 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}
uint64_t naive(uint64_t a, uint64_t offset, std::span<const std::byte> bytes) {
  uint64_t sum = 0;
  for (size_t k = 0; k < bytes.size(); ++k) {
    const uint64_t at = offset + k;
    const uint64_t j = at / 4;
    const uint64_t word = static_cast<uint64_t>(bytes[k]) << (8 * (at % 4));
    const uint64_t t = (mix(1024 * (a + 1) + j % 1024) >> 32) | 1;
    const uint64_t m = mix((a + 1) * (uint64_t{1} << 32) + j / 1024) | 1;
    sum += word * t * m;
  }
  return sum;
}
Digest naive_digest(uint64_t offset, std::span<const std::byte> bytes) {
  return {naive(0, offset, bytes), naive(1, offset, bytes)};
}

Bytes random_bytes(std::mt19937_64& random, size_t count) {
  Bytes bytes(count);
  for (auto& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

}  // namespace

TEST_CASE("digest: the published vectors") {
  CHECK(digest(0, {}).hex() == "00000000000000000000000000000000");
  Bytes bytes;
  for (int i = 0; i < 40 * 256; ++i) bytes.push_back(std::byte(i & 0xFF));
  CHECK(digest(0, bytes).hex() == "f738b9d6a91d19a825813aec5ef226f8");
}

TEST_CASE("digest: the formula, at any offset and length") {
  std::mt19937_64 random(3);
  for (int round = 0; round < 400; ++round) {
    const Bytes bytes = random_bytes(random, random() % 20000 >> random() % 12);
    const uint64_t offset = random() >> (8 + random() % 56);
    CAPTURE(offset);
    CAPTURE(bytes.size());
    CHECK(digest(offset, bytes) == naive_digest(offset, bytes));
  }
}

TEST_CASE("digest: parts add up, in any order and however they are cut") {
  std::mt19937_64 random(4);
  for (int round = 0; round < 200; ++round) {
    const Bytes bytes = random_bytes(random, 1 + random() % 30000);
    const uint64_t offset = random() % 100000;
    Digest sum;
    for (size_t end = bytes.size(); end > 0;) {
      const size_t begin = end - (1 + random() % end);
      sum +=
          digest(offset + begin, std::span(bytes).subspan(begin, end - begin));
      end = begin;
    }
    CHECK(sum == digest(offset, bytes));
  }
}

TEST_CASE("digest_rows: the sum of its rows") {
  std::mt19937_64 random(5);
  for (int round = 0; round < 400; ++round) {
    const size_t row = random() % 40 * (random() % 8 ? 1 : 100);
    const size_t stride = row + random() % 50;
    const size_t count = random() % 60;
    const uint64_t content_stride = row + random() % 10000;
    const uint64_t offset = random() % (1 << 20);
    const Bytes bytes = random_bytes(random, stride * count + row);
    Digest expected;
    for (size_t r = 0; r < count; ++r)
      expected += naive_digest(offset + r * content_stride,
                               std::span(bytes).subspan(r * stride, row));
    CHECK(digest_rows(offset, content_stride, bytes.data(), stride, row,
                      count) == expected);
  }
}

TEST_CASE("digest: every kernel of this processor gives the same sums") {
  using namespace digest_detail;
  std::mt19937_64 random(6);
  static Tables tables;
  for (size_t a = 0; a < 2; ++a) {
    for (uint32_t& t : tables.t[a]) t = static_cast<uint32_t>(random());
    std::copy_n(tables.t[a] + 1, kBlock, tables.next[a]);
  }
  for (int round = 0; round < 2000; ++round) {
    const size_t i = random() % kBlock;
    const size_t n = random() % (kBlock - i + 1);
    const size_t skew = random() % 4;
    const Bytes bytes = random_bytes(random, 4 * n + skew);
    Sums expected{random(), random()};
    const Sums before = expected;
    for (size_t k = 0; k < n; ++k) {
      uint32_t word;
      std::memcpy(&word, bytes.data() + skew + 4 * k, 4);
      expected.s0 += uint64_t{word} * tables.t[0][i + k];
      expected.s1 += uint64_t{word} * tables.t[1][i + k];
    }
    for (const NamedKernel& usable : usable_kernels()) {
      CAPTURE(usable.name);
      Sums sums = before;
      usable.kernel(tables, i, bytes.data() + skew, n, sums);
      CHECK(sums.s0 == expected.s0);
      CHECK(sums.s1 == expected.s1);
    }
  }
}

TEST_CASE("digest: hex and back") {
  const Digest d{0x0123456789abcdef, 7};
  CHECK(d.hex() == "0123456789abcdef0000000000000007");
  CHECK(Digest::parse(d.hex()) == d);
  for (const char* bad :
       {"", "0123", "0123456789abcdef000000000000000g",
        "0123456789abcdef00000000000000070", "-123456789abcdef0000000000000007",
        "0x23456789abcdef0000000000000007"})
    CHECK(!Digest::parse(bad));
}

}  // namespace ckpt
