// SPDX-License-Identifier: Apache-2.0
// Blocks packed with zstd, each a frame of its own.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/error.h"

namespace ckpt::codec {

// Throws resource_error if this build lacks zstd.
std::vector<std::byte> pack_zstd(std::span<const std::byte> plain);

// The most that so many bytes become.
uint64_t most_packed(uint64_t bytes);

// Throws input_error, naming `where`, for a frame that does not make exactly
// plain.size() bytes.
void unpack_zstd(std::span<const std::byte> packed, std::span<std::byte> plain,
                 const Where& where);
// The same of any codec that has a decoder (decoder.h).
void unpack(Codec codec, std::span<const std::byte> packed,
            std::span<std::byte> plain, const Where& where);

// The bytes of elements of `size` bytes, their first bytes first, then all the
// second ones …: those of exponents are alike and pack well. join_planes is the
// way back. The sizes of both spans are one multiple of `size`.
void split_planes(std::span<const std::byte> elements, size_t size,
                  std::span<std::byte> planes);
void join_planes(std::span<const std::byte> planes, size_t size,
                 std::span<std::byte> elements);

}  // namespace ckpt::codec
