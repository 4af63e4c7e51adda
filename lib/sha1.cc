// SPDX-License-Identifier: Apache-2.0
#include "lib/sha1.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace ckpt {

void Sha1::block(const std::byte* bytes) {
  std::array<uint32_t, 80> words;
  for (size_t i = 0; i < 16; ++i) {
    words[i] = 0;
    for (size_t k = 0; k < 4; ++k)
      words[i] = words[i] << 8 | std::to_integer<uint32_t>(bytes[4 * i + k]);
  }
  for (size_t i = 16; i < 80; ++i)
    words[i] = std::rotl(
        words[i - 3] ^ words[i - 8] ^ words[i - 14] ^ words[i - 16], 1);
  // clang 14 lets no lambda have structured bindings.
  uint32_t a = state_[0], b = state_[1], c = state_[2], d = state_[3],
           e = state_[4];
  const auto rounds = [&](size_t first, uint32_t constant, const auto& mix) {
    for (size_t i = first; i < first + 20; ++i) {
      const uint32_t next =
          std::rotl(a, 5) + mix(b, c, d) + e + constant + words[i];
      e = d;
      d = c;
      c = std::rotl(b, 30);
      b = a;
      a = next;
    }
  };
  const auto parity = [](uint32_t x, uint32_t y, uint32_t z) {
    return x ^ y ^ z;
  };
  rounds(0, 0x5a827999,
         [](uint32_t x, uint32_t y, uint32_t z) { return (x & y) | (~x & z); });
  rounds(20, 0x6ed9eba1, parity);
  rounds(40, 0x8f1bbcdc, [](uint32_t x, uint32_t y, uint32_t z) {
    return (x & y) | (x & z) | (y & z);
  });
  rounds(60, 0xca62c1d6, parity);
  state_[0] += a;
  state_[1] += b;
  state_[2] += c;
  state_[3] += d;
  state_[4] += e;
}

void Sha1::update(std::span<const std::byte> bytes) {
  size_t held = size_ % kBlock;
  size_ += bytes.size();
  while (!bytes.empty()) {
    if (held == 0 && bytes.size() >= kBlock) {
      block(bytes.data());
      bytes = bytes.subspan(kBlock);
      continue;
    }
    const size_t count = std::min(bytes.size(), kBlock - held);
    std::copy_n(bytes.begin(), count, rest_.begin() + held);
    bytes = bytes.subspan(count);
    held += count;
    if (held < kBlock) return;
    block(rest_.data());
    held = 0;
  }
}

// Appends a one bit, zeros up to eight bytes before a block's end, and the size
// in bits.
std::string Sha1::hex() {
  const uint64_t bits = size_ * 8;
  std::array<std::byte, 2 * kBlock> end{};
  end[0] = std::byte{0x80};
  const size_t held = size_ % kBlock;
  const size_t count = (held < 56 ? 56 : 120) - held;
  for (size_t i = 0; i < 8; ++i)
    end[count + i] = static_cast<std::byte>(bits >> (56 - 8 * i));
  update(std::span(end).first(count + 8));
  std::string text;
  for (const uint32_t word : state_) text += fmt::format("{:08x}", word);
  return text;
}

}  // namespace ckpt
