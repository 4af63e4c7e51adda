// SPDX-License-Identifier: Apache-2.0
// 16 bytes in a register, and interleaving two of them, with what every x86-64
// (SSE2) and every aarch64 (NEON) has.
//
//   zip_low<2>   a0 a1 a2 ..  b0 b1 b2 ..  ─►  a0 b0 a1 b1 ..
//   zip_high<2>  the same of the upper halves; elements of 1, 2, 4 or 8 bytes
#pragma once

#if defined(__SSE2__) || defined(__aarch64__)
#define CKPT_LANES

#include <cstddef>
#include <cstdint>
#if defined(__SSE2__)
#include <emmintrin.h>
#else
#include <arm_neon.h>
#endif

namespace ckpt::reshard::lanes {

#if defined(__SSE2__)

using Vector = __m128i;

inline Vector load(const std::byte* from) {
  return _mm_loadu_si128(reinterpret_cast<const Vector*>(from));
}
inline void store(std::byte* to, Vector value) {
  _mm_storeu_si128(reinterpret_cast<Vector*>(to), value);
}
template <int bytes>
Vector zip_low(Vector a, Vector b) {
  if constexpr (bytes == 1) return _mm_unpacklo_epi8(a, b);
  if constexpr (bytes == 2) return _mm_unpacklo_epi16(a, b);
  if constexpr (bytes == 4) return _mm_unpacklo_epi32(a, b);
  if constexpr (bytes == 8) return _mm_unpacklo_epi64(a, b);
}
template <int bytes>
Vector zip_high(Vector a, Vector b) {
  if constexpr (bytes == 1) return _mm_unpackhi_epi8(a, b);
  if constexpr (bytes == 2) return _mm_unpackhi_epi16(a, b);
  if constexpr (bytes == 4) return _mm_unpackhi_epi32(a, b);
  if constexpr (bytes == 8) return _mm_unpackhi_epi64(a, b);
}

#else

using Vector = uint8x16_t;

inline Vector load(const std::byte* from) {
  return vld1q_u8(reinterpret_cast<const uint8_t*>(from));
}
inline void store(std::byte* to, Vector value) {
  vst1q_u8(reinterpret_cast<uint8_t*>(to), value);
}
template <int bytes>
Vector zip_low(Vector a, Vector b) {
  if constexpr (bytes == 1) return vzip1q_u8(a, b);
  if constexpr (bytes == 2)
    return vreinterpretq_u8_u16(
        vzip1q_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b)));
  if constexpr (bytes == 4)
    return vreinterpretq_u8_u32(
        vzip1q_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)));
  if constexpr (bytes == 8)
    return vreinterpretq_u8_u64(
        vzip1q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
}
template <int bytes>
Vector zip_high(Vector a, Vector b) {
  if constexpr (bytes == 1) return vzip2q_u8(a, b);
  if constexpr (bytes == 2)
    return vreinterpretq_u8_u16(
        vzip2q_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b)));
  if constexpr (bytes == 4)
    return vreinterpretq_u8_u32(
        vzip2q_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)));
  if constexpr (bytes == 8)
    return vreinterpretq_u8_u64(
        vzip2q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
}

#endif

// 4 x 4 words.
inline void turn_words(Vector* x) {
  const Vector ab = zip_low<4>(x[0], x[1]);
  const Vector cd = zip_low<4>(x[2], x[3]);
  const Vector ab2 = zip_high<4>(x[0], x[1]);
  const Vector cd2 = zip_high<4>(x[2], x[3]);
  x[0] = zip_low<8>(ab, cd);
  x[1] = zip_high<8>(ab, cd);
  x[2] = zip_low<8>(ab2, cd2);
  x[3] = zip_high<8>(ab2, cd2);
}

}  // namespace ckpt::reshard::lanes

#endif
