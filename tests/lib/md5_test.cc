// SPDX-License-Identifier: Apache-2.0
#include "lib/net/md5.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

namespace ckpt::net {
namespace {

// In pieces of this size.
std::string md5_of(std::string_view text, size_t piece) {
  Md5 sum;
  for (size_t at = 0; at < text.size(); at += piece)
    sum.update(std::as_bytes(
        std::span(text).subspan(at, std::min(piece, text.size() - at))));
  return sum.hex();
}

}  // namespace

// RFC 1321, A.5; below, md5sum of as many x, around the ends of blocks.
TEST_CASE("md5: what others compute, in pieces of any size") {
  struct Row {
    std::string text;
    std::string_view sum;
  };
  const Row rows[] = {
      {"", "d41d8cd98f00b204e9800998ecf8427e"},
      {"a", "0cc175b9c0f1b6a831c399e269772661"},
      {"abc", "900150983cd24fb0d6963f7d28e17f72"},
      {"message digest", "f96b697d7cb7938d525a2f31aaf161d0"},
      {"abcdefghijklmnopqrstuvwxyz", "c3fcd3d76192e4007dfb496cca67e13b"},
      {"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
       "d174ab98d277d9f5a5611c2c9f419d9f"},
      {"1234567890123456789012345678901234567890123456789012345678901234567890"
       "1234567890",
       "57edf4a22be3c955ac49da2e2107b67a"},
      {std::string(55, 'x'), "04364420e25c512fd958a70738aa8f72"},
      {std::string(56, 'x'), "668a72d5ba17f08e62dabcafad6db14b"},
      {std::string(63, 'x'), "7dc2ca208106a2f703567bdff99d8981"},
      {std::string(64, 'x'), "c1bb4f81d892b2d57947682aeb252456"},
      {std::string(65, 'x'), "1bc932052302d074bdec39795fe00cf6"},
      {std::string(128, 'x'), "d69cb61a6ee87200676eb0d4b90edbcb"},
      {std::string(100000, 'x'), "d5816f35916d1d9482fb0f1ec201101d"},
  };
  for (const Row& row : rows)
    for (const size_t piece : {1, 7, 63, 64, 65, 100'000}) {
      CAPTURE(row.text.size());
      CAPTURE(piece);
      CHECK(md5_of(row.text, piece) == row.sum);
    }
}

}  // namespace ckpt::net
