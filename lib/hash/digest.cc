// SPDX-License-Identifier: Apache-2.0
#include "lib/hash/digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "lib/hash/digest_kernel.h"

namespace ckpt {
namespace {

using digest_detail::kBlock;
using digest_detail::Kernel;
using digest_detail::Sums;
using digest_detail::Tables;

static_assert(std::endian::native == std::endian::little,
              "words are loaded as they lie in memory");

// splitmix64's output function.
constexpr uint64_t mix(uint64_t x) {
  uint64_t z = x + 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

const Tables& tables() {
  static const Tables tables = [] {
    Tables made{};
    for (uint64_t a = 0; a < 2; ++a) {
      for (uint64_t i = 0; i < kBlock; ++i)
        made.t[a][i] = static_cast<uint32_t>(mix(1024 * (a + 1) + i) >> 32) | 1;
      std::copy_n(made.t[a] + 1, kBlock, made.next[a]);
    }
    return made;
  }();
  return tables;
}

// Adds up words, one block of 1024 at a time: words inside a block are
// multiplied by t, and the block's sum by m.
class Accumulator {
 public:
  // Adds the word with index j of the content.
  void add_word(uint64_t j, uint32_t word) {
    select(j / kBlock);
    const size_t i = j % kBlock;
    sums_.s0 += uint64_t{word} * tables_.t[0][i];
    sums_.s1 += uint64_t{word} * tables_.t[1][i];
  }

  // Adds bytes at byte `offset` of the content.
  void add(uint64_t offset, const std::byte* bytes, size_t count) {
    if (count == 0) return;
    uint64_t j = offset / 4;
    if (const size_t skip = offset % 4; skip != 0) {
      const size_t head = std::min(count, 4 - skip);
      add_word(j++, load(bytes, head) << (8 * skip));
      bytes += head;
      count -= head;
    }
    for (size_t words = count / 4; words != 0;) {
      select(j / kBlock);
      const size_t i = j % kBlock;
      const size_t n = std::min(words, kBlock - i);
      kernel_(tables_, i, bytes, n, sums_);
      j += n;
      words -= n;
      bytes += 4 * n;
    }
    if (count % 4 != 0) add_word(j, load(bytes, count % 4));
  }

  Digest total() {
    close();
    return total_;
  }

 private:
  static uint32_t load(const std::byte* bytes, size_t count) {
    uint32_t word = 0;
    std::memcpy(&word, bytes, count);
    return word;
  }
  void select(uint64_t block) {
    if (block == block_) return;
    close();
    block_ = block;
  }
  void close() {
    if (sums_.s0 == 0 && sums_.s1 == 0) return;
    total_.d0 += sums_.s0 * (mix((uint64_t{1} << 32) + block_) | 1);
    total_.d1 += sums_.s1 * (mix((uint64_t{2} << 32) + block_) | 1);
    sums_ = {};
  }

  const Tables& tables_ = tables();
  const Kernel kernel_ = digest_detail::best_kernel();
  uint64_t block_ = 0;
  Sums sums_;
  Digest total_;
};

}  // namespace

Digest digest(uint64_t offset, std::span<const std::byte> bytes) {
  Accumulator sum;
  sum.add(offset, bytes.data(), bytes.size());
  return sum.total();
}

Digest digest_rows(uint64_t offset, uint64_t content_stride,
                   const std::byte* rows, size_t stride, size_t row_bytes,
                   size_t count) {
  Accumulator sum;
  for (size_t r = 0; r < count; ++r)
    sum.add(offset + r * content_stride, rows + r * stride, row_bytes);
  return sum.total();
}

std::string Digest::hex() const {
  return fmt::format("{:016x}{:016x}", d0, d1);
}

std::optional<Digest> Digest::parse(std::string_view hex) {
  if (hex.size() != 32) return std::nullopt;
  Digest digest;
  for (const bool second : {false, true}) {
    const char* begin = hex.data() + (second ? 16 : 0);
    uint64_t& value = second ? digest.d1 : digest.d0;
    const auto [end, error] = std::from_chars(begin, begin + 16, value, 16);
    if (error != std::errc() || end != begin + 16) return std::nullopt;
  }
  return digest;
}

}  // namespace ckpt
