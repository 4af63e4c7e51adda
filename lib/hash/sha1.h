// SPDX-License-Identifier: Apache-2.0
// SHA-1 (RFC 3174): git names what it stores by it, and so do caches of
// repositories. It guards against accidents, not against people.
#pragma once

#include "lib/hash/block_hash.h"

namespace ckpt {

class Sha1 : public BlockHash<Sha1, 5, std::endian::big> {
 public:
  Sha1()
      : BlockHash(
            {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0}) {}

 private:
  friend BlockHash;
  void blocks(const std::byte* bytes, size_t count);
  void block(const std::byte* bytes);
};

}  // namespace ckpt
