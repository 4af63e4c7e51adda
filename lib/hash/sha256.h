// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4), for checksums that others stored. What ckpt itself
// promises about content is in digest.h.
#pragma once

#include "lib/hash/block_hash.h"

namespace ckpt {

class Sha256 : public BlockHash<Sha256, 8, std::endian::big> {
 public:
  Sha256()
      : BlockHash({0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                   0x9b05688c, 0x1f83d9ab, 0x5be0cd19}) {}

 private:
  friend BlockHash;
  void blocks(const std::byte* bytes, size_t count);
};

}  // namespace ckpt
