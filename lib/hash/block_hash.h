// SPDX-License-Identifier: Apache-2.0
// What MD5, SHA-1 and SHA-256 have in common: blocks of 64 bytes, which change
// a few words of 32 bits, and an end of a one bit, zeros and the size in bits.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace ckpt {

// Two hexadecimal digits for each byte of the words, in that order of bytes.
std::string hex_of(std::span<const uint32_t> words, std::endian order);

// Hash::blocks(bytes, count) takes whole blocks. `Order`: of the bytes in a
// word, and of those of the size.
template <class Hash, size_t Words, std::endian Order>
class BlockHash {
 public:
  void update(std::span<const std::byte> bytes) {
    const size_t held = size_ % kBlock;
    size_ += bytes.size();
    if (held != 0) {
      const size_t taken = std::min(bytes.size(), kBlock - held);
      std::ranges::copy(bytes.first(taken), rest_.begin() + held);
      bytes = bytes.subspan(taken);
      if (held + taken < kBlock) return;
      take(rest_.data(), 1);
    }
    const size_t count = bytes.size() / kBlock;
    take(bytes.data(), count);
    std::ranges::copy(bytes.subspan(count * kBlock), rest_.begin());
  }

  // Hexadecimal digits; call it once, after the last update.
  std::string hex() {
    const uint64_t bits = size_ * 8;
    std::array<std::byte, 2 * kBlock> end{std::byte{0x80}};
    const size_t held = size_ % kBlock;
    const size_t zeros = (held < 56 ? 56 : 120) - held;
    for (size_t i = 0; i < 8; ++i)
      end[zeros + i] = static_cast<std::byte>(
          bits >> 8 * (Order == std::endian::big ? 7 - i : i));
    update(std::span(end).first(zeros + 8));
    return hex_of(state_, Order);
  }

 protected:
  using State = std::array<uint32_t, Words>;
  static constexpr size_t kBlock = 64;

  explicit BlockHash(const State& state) : state_(state) {}

  State state_;

 private:
  void take(const std::byte* bytes, size_t count) {
    if (count != 0) static_cast<Hash*>(this)->blocks(bytes, count);
  }

  std::array<std::byte, kBlock> rest_{};  // less than a block
  uint64_t size_ = 0;                     // of all updates, in bytes
};

}  // namespace ckpt
