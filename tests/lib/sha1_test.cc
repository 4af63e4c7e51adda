// SPDX-License-Identifier: Apache-2.0
#include "lib/hash/sha1.h"

#include <doctest/doctest.h>

#include <span>
#include <string>
#include <string_view>

namespace {

std::string sha1_of(std::string_view text, size_t part = SIZE_MAX) {
  ckpt::Sha1 sum;
  for (size_t at = 0; at < text.size(); at += part) {
    const auto some = text.substr(at, part);
    sum.update(std::as_bytes(std::span(some)));
    if (part == SIZE_MAX) break;
  }
  return sum.hex();
}

}  // namespace

TEST_CASE("sha1: the standard's examples") {
  CHECK(sha1_of("") == "da39a3ee5e6b4b0d3255bfef95601890afd80709");
  CHECK(sha1_of("abc") == "a9993e364706816aba3e25717850c26c9cd0d89d");
  CHECK(sha1_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
  CHECK(sha1_of(std::string(1'000'000, 'a')) ==
        "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
}

TEST_CASE("sha1: what git names an empty file") {
  CHECK(sha1_of(std::string_view("blob 0\0", 7)) ==
        "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
}

TEST_CASE("sha1: the same in one part or in many") {
  std::string text;
  for (size_t i = 0; i < 300; ++i) text += static_cast<char>('a' + i % 26);
  for (const size_t length : {55U, 56U, 63U, 64U, 65U, 127U, 128U, 300U})
    for (const size_t part : {1U, 7U, 63U, 64U, 65U})
      CHECK(sha1_of(text.substr(0, length), part) ==
            sha1_of(text.substr(0, length)));
}
