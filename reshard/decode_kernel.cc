// SPDX-License-Identifier: Apache-2.0
#include "reshard/decode_kernel.h"

#include <bit>
#include <cstring>
#include <vector>

#include "reshard/numbers.h"

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
  // Products of at most 448, or what rounds to it: e4m3 has a code for each.
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

// One set of functions for a target. A macro: the attribute has to stand on
// each of them.
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
    if (cast.name == "avx512")
      kernels.push_back(decode_kernel<Avx512Decode>(cast.name));
#endif
    // On aarch64 the same loops have become vector instructions.
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
