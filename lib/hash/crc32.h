// SPDX-License-Identifier: Apache-2.0
// CRC-32 (zip's polynomial) of bytes that arrive in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ckpt {

// Continues `crc` (0 to begin) over bytes.
uint32_t crc32(uint32_t crc, std::span<const std::byte> bytes);

// What a part with this CRC contributes to the CRC of a whole in which
// `bytes_after` bytes follow the part. The CRC of the whole is the XOR of the
// contributions of all its parts, in any order.
uint32_t crc32_contribution(uint32_t crc, uint64_t bytes_after);

}  // namespace ckpt
