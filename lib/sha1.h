// SPDX-License-Identifier: Apache-2.0
// SHA-1 (RFC 3174): git names what it stores by it, and so do caches of
// repositories. It guards against accidents, not against people.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace ckpt {

class Sha1 {
 public:
  void update(std::span<const std::byte> bytes);
  // 40 hexadecimal digits; call it once, after the last update.
  std::string hex();

 private:
  static constexpr size_t kBlock = 64;
  void block(const std::byte* bytes);

  std::array<uint32_t, 5> state_{0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476,
                                 0xc3d2e1f0};
  std::array<std::byte, kBlock> rest_{};  // less than a block
  uint64_t size_ = 0;
};

}  // namespace ckpt
