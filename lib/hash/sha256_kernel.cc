// SPDX-License-Identifier: Apache-2.0
#include "lib/hash/sha256_kernel.h"

#include <bit>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "lib/cpu.h"

namespace ckpt::sha256 {
namespace {

alignas(16) constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1,
    0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3,
    0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
    0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
    0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
    0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
    0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t load(const std::byte* bytes) {
  uint32_t value;
  std::memcpy(&value, bytes, sizeof value);
  return std::endian::native == std::endian::little ? __builtin_bswap32(value)
                                                    : value;
}

void portable_block(State& state, const std::byte* bytes) {
  uint32_t w[64];
  for (int i = 0; i < 16; ++i) w[i] = load(bytes + 4 * i);
  for (int i = 16; i < 64; ++i) {
    const uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + w[i - 7] +
           (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (int i = 0; i < 64; ++i) {
    const uint32_t t1 =
        h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
        ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    const uint32_t t2 =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) +
        ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const uint32_t sums[8] = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state[i] += sums[i];
}

void portable(State& state, const std::byte* bytes, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i) portable_block(state, bytes + 64 * i);
}

#if defined(__x86_64__)

// Four rounds with the words `m0`; `m1` to `m3` are the next twelve, and `m0`
// becomes the four after those. The instructions want the state as ABEF and
// CDGH.
[[gnu::target("sha,sse4.1"), gnu::always_inline]] inline void four_rounds(
    int round, __m128i& abef, __m128i& cdgh, __m128i& m0, __m128i m1,
    __m128i m2, __m128i m3) {
  const __m128i constants =
      _mm_load_si128(reinterpret_cast<const __m128i*>(kRound + round));
  const __m128i words = _mm_add_epi32(m0, constants);
  cdgh = _mm_sha256rnds2_epu32(cdgh, abef, words);
  abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(words, 0x0E));
  const __m128i sum =
      _mm_add_epi32(_mm_sha256msg1_epu32(m0, m1), _mm_alignr_epi8(m3, m2, 4));
  m0 = _mm_sha256msg2_epu32(sum, m3);
}

[[gnu::target("sha,sse4.1"), gnu::always_inline]] inline __m128i load_words(
    const std::byte* from) {
  const __m128i swap = _mm_set_epi64x(0x0C0D0E0F08090A0B, 0x0405060700010203);
  return _mm_shuffle_epi8(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)), swap);
}

[[gnu::target("sha,sse4.1")]] void sha_ni(State& state, const std::byte* bytes,
                                          size_t blocks) {
  auto* const words = reinterpret_cast<__m128i*>(state.data());
  __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128(words), 0xB1);
  __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128(words + 1), 0x1B);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8);
  __m128i cdgh = _mm_blend_epi16(efgh, cdab, 0xF0);
  for (; blocks != 0; --blocks, bytes += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i m0 = load_words(bytes), m1 = load_words(bytes + 16);
    __m128i m2 = load_words(bytes + 32), m3 = load_words(bytes + 48);
    for (int round = 0; round < 64; round += 16) {
      four_rounds(round, abef, cdgh, m0, m1, m2, m3);
      four_rounds(round + 4, abef, cdgh, m1, m2, m3, m0);
      four_rounds(round + 8, abef, cdgh, m2, m3, m0, m1);
      four_rounds(round + 12, abef, cdgh, m3, m0, m1, m2);
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1B);
  const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xB1);
  _mm_storeu_si128(words, _mm_blend_epi16(feba, dchg, 0xF0));
  _mm_storeu_si128(words + 1, _mm_alignr_epi8(dchg, feba, 8));
}

#elif defined(__aarch64__)

// As on x86-64, but with the state in its usual order.
[[gnu::target("+sha2"), gnu::always_inline]] inline void four_rounds(
    int round, uint32x4_t& abcd, uint32x4_t& efgh, uint32x4_t& m0,
    uint32x4_t m1, uint32x4_t m2, uint32x4_t m3) {
  const uint32x4_t words = vaddq_u32(m0, vld1q_u32(kRound + round));
  const uint32x4_t before = abcd;
  abcd = vsha256hq_u32(abcd, efgh, words);
  efgh = vsha256h2q_u32(efgh, before, words);
  m0 = vsha256su1q_u32(vsha256su0q_u32(m0, m1), m2, m3);
}

[[gnu::target("+sha2"), gnu::always_inline]] inline uint32x4_t load_words(
    const std::byte* from) {
  return vreinterpretq_u32_u8(
      vrev32q_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(from))));
}

[[gnu::target("+sha2")]] void sha2(State& state, const std::byte* bytes,
                                   size_t blocks) {
  uint32x4_t abcd = vld1q_u32(state.data());
  uint32x4_t efgh = vld1q_u32(state.data() + 4);
  for (; blocks != 0; --blocks, bytes += 64) {
    const uint32x4_t abcd_before = abcd, efgh_before = efgh;
    uint32x4_t m0 = load_words(bytes), m1 = load_words(bytes + 16);
    uint32x4_t m2 = load_words(bytes + 32), m3 = load_words(bytes + 48);
    for (int round = 0; round < 64; round += 16) {
      four_rounds(round, abcd, efgh, m0, m1, m2, m3);
      four_rounds(round + 4, abcd, efgh, m1, m2, m3, m0);
      four_rounds(round + 8, abcd, efgh, m2, m3, m0, m1);
      four_rounds(round + 12, abcd, efgh, m3, m0, m1, m2);
    }
    abcd = vaddq_u32(abcd, abcd_before);
    efgh = vaddq_u32(efgh, efgh_before);
  }
  vst1q_u32(state.data(), abcd);
  vst1q_u32(state.data() + 4, efgh);
}

#endif

std::vector<Kernel> find_kernels() {
  std::vector<Kernel> found{{"portable", portable}};
#if defined(__x86_64__)
  if (cpu_features().sha && cpu_features().sse41)
    found.push_back({"sha_ni", sha_ni});
#elif defined(__aarch64__)
  if (cpu_features().sha2) found.push_back({"sha2", sha2});
#endif
  return found;
}

}  // namespace

const std::vector<Kernel>& kernels() {
  static const std::vector<Kernel> found = find_kernels();
  return found;
}

}  // namespace ckpt::sha256
