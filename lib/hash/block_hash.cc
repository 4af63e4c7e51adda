// SPDX-License-Identifier: Apache-2.0
#include "lib/hash/block_hash.h"

#include <fmt/format.h>

namespace ckpt {

std::string hex_of(std::span<const uint32_t> words, std::endian order) {
  std::string text;
  for (const uint32_t word : words)
    text += fmt::format(
        "{:08x}", order == std::endian::big ? word : __builtin_bswap32(word));
  return text;
}

}  // namespace ckpt
