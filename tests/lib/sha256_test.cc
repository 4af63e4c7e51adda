// SPDX-License-Identifier: Apache-2.0
#include "lib/hash/sha256.h"

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "lib/hash/sha256_kernel.h"
#include "lib/net/hmac.h"

namespace ckpt {
namespace {

std::string hash(std::string_view text) {
  Sha256 sha;
  sha.update(std::as_bytes(std::span(text)));
  return sha.hex();
}

}  // namespace

// The examples of FIPS 180-4 and its test vectors.
TEST_CASE("sha256: the standard's examples") {
  struct Row {
    std::string text;
    const char* digest;
  };
  const Row rows[] = {
      {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"abc",
       "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
      {std::string(1'000'000, 'a'),
       "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
  };
  for (const Row& row : rows) CHECK(hash(row.text) == row.digest);
}

TEST_CASE("sha256: the same in one part or in many") {
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    std::string text(random() % 400, '\0');
    for (char& c : text) c = static_cast<char>(random());
    Sha256 parts;
    for (size_t at = 0; at < text.size();) {
      const size_t count = 1 + random() % (text.size() - at);
      parts.update(std::as_bytes(std::span(text).subspan(at, count)));
      at += count;
    }
    CHECK(parts.hex() == hash(text));
  }
}

// "abc" as one padded block: the state after it is the standard's digest. Then
// all kernels over random blocks, from the state that the previous ones left.
TEST_CASE("sha256: each kernel of this processor") {
  const sha256::State begin{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                            0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  const sha256::State abc{0xba7816bf, 0x8f01cfea, 0x414140de, 0x5dae2223,
                          0xb00361a3, 0x96177a9c, 0xb410ff61, 0xf20015ad};
  std::string padded = "abc\x80" + std::string(60, '\0');
  padded.back() = 24;
  REQUIRE(!sha256::kernels().empty());
  std::vector<sha256::State> states;
  for (const sha256::Kernel& kernel : sha256::kernels()) {
    CAPTURE(kernel.name);
    sha256::State state = begin;
    kernel.run(state, std::as_bytes(std::span(padded)).data(), 1);
    CHECK(state == abc);
    std::mt19937_64 random(2);
    for (size_t blocks = 0; blocks < 40; ++blocks) {
      std::string text(1 + 64 * blocks, '\0');  // at odd addresses
      for (char& c : text) c = static_cast<char>(random());
      kernel.run(state, std::as_bytes(std::span(text)).data() + 1, blocks);
    }
    states.push_back(state);
  }
  for (const sha256::State& state : states) CHECK(state == states.front());
}

}  // namespace ckpt

TEST_CASE("HMAC-SHA256: the cases of RFC 4231") {
  using ckpt::net::hmac_sha256;
  CHECK(hmac_sha256(std::string(20, '\x0b'), "Hi There") ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(hmac_sha256("Jefe", "what do ya want for nothing?") ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(hmac_sha256(std::string(131, '\xaa'),
                    "Test Using Larger Than Block-Size Key - Hash Key First") ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST_CASE("base 64: the cases of RFC 4648, and what is none") {
  using ckpt::net::from_base64;
  CHECK(from_base64("") == "");
  CHECK(from_base64("Zg==") == "f");
  CHECK(from_base64("Zm8=") == "fo");
  CHECK(from_base64("Zm9vYmFy") == "foobar");
  for (const char* text : {"Zg", "Zg=", "Z===", "Zm9-", "Zm9v\n"})
    CHECK(from_base64(text) == std::nullopt);
}
