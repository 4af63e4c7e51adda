// SPDX-License-Identifier: Apache-2.0
// MD5 (RFC 1321): what object stores return as ETag and accept as Content-MD5.
// It guards against accidents in transit, not against people.
#pragma once

#include <string>

#include "lib/hash/block_hash.h"

namespace ckpt::net {

class Md5 : public BlockHash<Md5, 4, std::endian::little> {
 public:
  Md5() : BlockHash({0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476}) {}

 private:
  friend BlockHash;
  void blocks(const std::byte* bytes, size_t count);
  void block(const std::byte* bytes);
};

// Converts hexadecimal digits to base 64.
std::string base64_of_hex(const std::string& hex);

}  // namespace ckpt::net
