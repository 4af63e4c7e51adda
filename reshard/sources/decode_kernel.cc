// SPDX-License-Identifier: Apache-2.0
#include "reshard/sources/decode_kernel.h"

#include <bit>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "reshard/numbers/numbers.h"

namespace ckpt::reshard {
namespace {

// The loops, inlined into one function for each instruction set.
struct Loops {
  [[gnu::always_inline]] static inline void from_i8(
      const std::byte* __restrict in, float* __restrict out, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i)
      out[i] = static_cast<float>(static_cast<int8_t>(in[i]));
  }
  [[gnu::always_inline]] static inline void from_u8(
      const std::byte* __restrict in, float* __restrict out, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i)
      out[i] = static_cast<float>(static_cast<int32_t>(in[i]));
  }
  // Sign, two bits of exponent with a bias of one, one of mantissa.
  [[gnu::always_inline]] static inline float e2m1(uint32_t code) {
    const uint32_t size = numbers::widen(code & 7, 1, 1);
    return std::bit_cast<float>(size | (code & 8) << 28);
  }
  [[gnu::always_inline]] static inline void from_e2m1(
      const std::byte* __restrict in, float* __restrict out, uint64_t count) {
    const uint64_t pairs = count / 2;
    for (uint64_t i = 0; i < pairs; ++i) {
      const auto byte = static_cast<uint32_t>(in[i]);
      out[2 * i] = e2m1(byte & 15);
      out[2 * i + 1] = e2m1(byte >> 4);
    }
    if (count % 2) out[count - 1] = e2m1(static_cast<uint32_t>(in[pairs]) & 15);
  }
  [[gnu::always_inline]] static inline void from_words(
      const uint32_t* __restrict in, uint32_t shift, uint32_t mask,
      float* __restrict out, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i)
      out[i] =
          static_cast<float>(static_cast<int32_t>((in[i] >> shift) & mask));
  }
  [[gnu::always_inline]] static inline void from_awq(
      const uint32_t* __restrict in, float* __restrict out, uint64_t words) {
    constexpr uint32_t kShift[] = {0, 16, 4, 20, 8, 24, 12, 28};
    for (uint64_t i = 0; i < words; ++i)
      for (uint32_t k = 0; k < 8; ++k)
        out[8 * i + k] =
            static_cast<float>(static_cast<int32_t>((in[i] >> kShift[k]) & 15));
  }
  [[gnu::always_inline]] static inline void scale(float* x, float zero,
                                                  float scale, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) x[i] = (x[i] - zero) * scale;
  }
  [[gnu::always_inline]] static inline void scale_each(
      float* __restrict x, const float* __restrict zeros,
      const float* __restrict scales, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) x[i] = (x[i] - zeros[i]) * scales[i];
  }
  [[gnu::always_inline]] static inline uint32_t largest(const float* x,
                                                        uint64_t count) {
    int32_t most = 0;
    for (uint64_t i = 0; i < count; ++i) {
      int32_t bits;
      std::memcpy(&bits, x + i, 4);
      bits &= 0x7FFFFFFF;
      most = bits > most ? bits : most;
    }
    return static_cast<uint32_t>(most);
  }
  [[gnu::always_inline]] static inline uint32_t largest_bf16(
      const std::byte* in, uint64_t count) {
    uint16_t most = 0;
    for (uint64_t i = 0; i < count; ++i) {
      uint16_t bits;
      std::memcpy(&bits, in + 2 * i, 2);
      bits &= 0x7FFF;
      most = bits > most ? bits : most;
    }
    return static_cast<uint32_t>(most) << 16;
  }
  // The products are at most 448 or round to it: e4m3 has a code for each.
  [[gnu::always_inline]] static inline void bf16_to_e4m3(
      const std::byte* __restrict in, float scale, std::byte* __restrict out,
      uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      uint16_t half;
      std::memcpy(&half, in + 2 * i, 2);
      const float x = std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
      const auto bits = std::bit_cast<uint32_t>(x * scale);
      const uint32_t code = numbers::narrow(bits & 0x7FFFFFFF, 3, 7);
      out[i] = static_cast<std::byte>((bits >> 24 & 0x80) | code);
    }
  }
};

// One set of functions for a target. A macro, because each of them needs the
// attribute.
#define CKPT_DECODE_SET(Set, ...)                                          \
  struct Set {                                                             \
    __VA_ARGS__ static void from_i8(const std::byte* in, float* out,       \
                                    uint64_t n) {                          \
      Loops::from_i8(in, out, n);                                          \
    }                                                                      \
    __VA_ARGS__ static void from_u8(const std::byte* in, float* out,       \
                                    uint64_t n) {                          \
      Loops::from_u8(in, out, n);                                          \
    }                                                                      \
    __VA_ARGS__ static void from_e2m1(const std::byte* in, float* out,     \
                                      uint64_t n) {                        \
      Loops::from_e2m1(in, out, n);                                        \
    }                                                                      \
    __VA_ARGS__ static void from_words(const uint32_t* in, uint32_t shift, \
                                       uint32_t mask, float* out,          \
                                       uint64_t n) {                       \
      Loops::from_words(in, shift, mask, out, n);                          \
    }                                                                      \
    __VA_ARGS__ static void from_awq(const uint32_t* in, float* out,       \
                                     uint64_t n) {                         \
      Loops::from_awq(in, out, n);                                         \
    }                                                                      \
    __VA_ARGS__ static void scale(float* x, float zero, float by,          \
                                  uint64_t n) {                            \
      Loops::scale(x, zero, by, n);                                        \
    }                                                                      \
    __VA_ARGS__ static uint32_t largest(const float* x, uint64_t n) {      \
      return Loops::largest(x, n);                                         \
    }                                                                      \
    __VA_ARGS__ static uint32_t largest_bf16(const std::byte* in,          \
                                             uint64_t n) {                 \
      return Loops::largest_bf16(in, n);                                   \
    }                                                                      \
    __VA_ARGS__ static void bf16_to_e4m3(const std::byte* in, float by,    \
                                         std::byte* out, uint64_t n) {     \
      Loops::bf16_to_e4m3(in, by, out, n);                                 \
    }                                                                      \
    __VA_ARGS__ static void scale_each(float* x, const float* zeros,       \
                                       const float* scales, uint64_t n) {  \
      Loops::scale_each(x, zeros, scales, n);                              \
    }                                                                      \
  }
CKPT_DECODE_SET(PortableDecode, [[gnu::flatten]]);
#if defined(__x86_64__)
CKPT_DECODE_SET(Avx2Decode, [[gnu::target("avx2"), gnu::flatten]]);
CKPT_DECODE_SET(Avx512Decode,
                [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl"),
                  gnu::flatten]]);
#endif
#undef CKPT_DECODE_SET

#if defined(__x86_64__)
// Sixteen at a time: compilers' code for the loop is half as fast. gcc 12 warns
// about an uninitialized operand in the unmasked intrinsics.
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]] void wide_bf16_to_e4m3(
    const std::byte* in, float scale, std::byte* out, uint64_t count) {
  constexpr __mmask16 kAll = 0xFFFF;
  // Numbers below the smallest normal one, 2^-6, have steps of 2^-9: those of
  // f32 at 2^14.
  const __m512 steps = _mm512_set1_ps(16384);
  const __m512i normal = _mm512_set1_epi32(0x3C800000);
  const __m512 by = _mm512_set1_ps(scale);
  uint64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m256i halves =
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + 2 * i));
    const __m512i wide = _mm512_maskz_slli_epi32(
        kAll, _mm512_maskz_cvtepu16_epi32(kAll, halves), 16);
    const __m512i bits =
        _mm512_castps_si512(_mm512_mul_ps(_mm512_castsi512_ps(wide), by));
    const __m512i size = _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF));
    const __m512i odd = _mm512_and_si512(
        _mm512_maskz_srli_epi32(kAll, size, 20), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_maskz_srli_epi32(
        kAll,
        _mm512_add_epi32(size,
                         _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFFF))),
        20);
    const __m512i small = _mm512_sub_epi32(
        _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(size), steps)),
        _mm512_castps_si512(steps));
    const __m512i code =
        _mm512_mask_sub_epi32(small, _mm512_cmpge_epu32_mask(size, normal),
                              rounded, _mm512_set1_epi32((127 - 7) << 3));
    const __m512i sign = _mm512_and_si512(
        _mm512_maskz_srli_epi32(kAll, bits, 24), _mm512_set1_epi32(0x80));
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(out + i),
        _mm512_maskz_cvtepi32_epi8(kAll, _mm512_or_si512(code, sign)));
  }
  Loops::bf16_to_e4m3(in + 2 * i, scale, out + i, count - i);
}
#endif

template <class Set>
DecodeKernel decode_kernel(std::string_view name) {
  return {name,
          Set::from_i8,
          Set::from_u8,
          Set::from_e2m1,
          Set::from_words,
          Set::from_awq,
          Set::scale,
          Set::scale_each,
          Set::largest,
          Set::largest_bf16,
          Set::bf16_to_e4m3};
}

std::vector<DecodeKernel> find_decode_kernels() {
  std::vector<DecodeKernel> kernels;
  for (const CastKernel& cast : usable_cast_kernels()) {
#if defined(__x86_64__)
    if (cast.name == "avx2")
      kernels.push_back(decode_kernel<Avx2Decode>(cast.name));
    if (cast.name == "avx512") {
      kernels.push_back(decode_kernel<Avx512Decode>(cast.name));
      kernels.back().bf16_to_e4m3 = wide_bf16_to_e4m3;
    }
#endif
    // On aarch64, the same loops were compiled to vector instructions.
    if (cast.name == "portable" || cast.name == "neon")
      kernels.push_back(decode_kernel<PortableDecode>(cast.name));
  }
  return kernels;
}

}  // namespace

std::span<const DecodeKernel> usable_decode_kernels() {
  static const std::vector<DecodeKernel> kernels = find_decode_kernels();
  return kernels;
}

const DecodeKernel& best_decode_kernel() {
  static const DecodeKernel& best = usable_decode_kernels().back();
  return best;
}

}  // namespace ckpt::reshard
