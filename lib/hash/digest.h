// SPDX-License-Identifier: Apache-2.0
// The linear content hash of a tensor (docs/digest.md): any sharding and any
// order of pieces add up to the same number.
//
//   word j    = bytes 4j..4j+3 of the row-major content, zero-padded
//   D_a       = sum of word_j * t_a[j mod 1024] * m_a(j div 1024)  mod 2^64
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ckpt {

struct Digest {
  uint64_t d0 = 0;
  uint64_t d1 = 0;

  Digest& operator+=(const Digest& other) {
    d0 += other.d0;
    d1 += other.d1;
    return *this;
  }
  friend bool operator==(const Digest&, const Digest&) = default;
  std::string hex() const;  // 32 digits
  static std::optional<Digest> parse(std::string_view hex);
};

// The digest of `bytes` at byte `offset` of the content. A run that begins or
// ends inside a word counts as that word with its other bytes zero.
Digest digest(uint64_t offset, std::span<const std::byte> bytes);

// Rows of `row_bytes` bytes, `stride` apart in memory; row r is at byte offset
// + r * content_stride of the content. One call for many short rows.
Digest digest_rows(uint64_t offset, uint64_t content_stride,
                   const std::byte* rows, size_t stride, size_t row_bytes,
                   size_t count);

}  // namespace ckpt
