// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4), for checksums that others stored. What ckpt itself
// promises about content is in digest.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace ckpt {

class Sha256 {
 public:
  void update(std::span<const std::byte> bytes);
  // 64 hexadecimal digits; call it once, after the last update.
  std::string hex();

 private:
  static constexpr size_t kBlock = 64;
  void add_blocks(const std::byte* bytes, size_t blocks);

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372,
                                 0xa54ff53a, 0x510e527f, 0x9b05688c,
                                 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, kBlock> rest_{};  // less than a block
  uint64_t size_ = 0;                     // of all updates, in bytes
};

}  // namespace ckpt
