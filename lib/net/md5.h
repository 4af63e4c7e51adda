// SPDX-License-Identifier: Apache-2.0
// MD5 (RFC 1321): what object stores return as ETag and accept as Content-MD5.
// It guards against accidents in transit, not against people.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace ckpt::net {

class Md5 {
 public:
  void update(std::span<const std::byte> bytes);
  // 32 hexadecimal digits; call it once, after the last update.
  std::string hex();

 private:
  static constexpr size_t kBlock = 64;
  void block(const std::byte* bytes);

  std::array<uint32_t, 4> state_{0x67452301, 0xefcdab89, 0x98badcfe,
                                 0x10325476};
  std::array<std::byte, kBlock> rest_{};  // less than a block
  uint64_t size_ = 0;
};

// Converts hexadecimal digits to base 64.
std::string base64_of_hex(const std::string& hex);

}  // namespace ckpt::net
