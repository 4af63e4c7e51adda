// SPDX-License-Identifier: Apache-2.0
#include "lib/hash/sha1.h"

#include <array>
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

void Sha1::blocks(const std::byte* bytes, size_t count) {
  for (size_t i = 0; i < count; ++i) block(bytes + i * kBlock);
}

}  // namespace ckpt
