// SPDX-License-Identifier: Apache-2.0
// Casts between floating-point types, element by element, with the bits that
// PyTorch gives on the CPU. The processor's and the GPU's casts are built from
// these.
//
// Narrow floats go through f32, as in PyTorch: an f64 rounds twice on its way
// to bf16. Rounding is to nearest, ties to even. Special values are handled as
// integers: a GPU's own conversions replace all NaNs by one value.
//
// NaNs, as found on x86-64 with AVX2 or AVX-512:
//   to f64, f32, f16   sign and the upper bits of the payload, made quiet
//   to bf16            0xffff from f32 and f64, 0x7fc0 from narrower ones
//   to f8              the one NaN of the type; e4m3 and e5m2 keep the sign
// For two pairs (f64 to bf16, f16 to f32) PyTorch gives other bits in the last
// elements of a run. Here a NaN always gets the bits from before those last
// elements, so the same content gives the same bytes in any sharding.
//
// No function has a branch: loops over them become vector instructions.
#pragma once

#include <cstdint>

#include "reshard/numbers/host_device.h"

namespace ckpt::numbers {

inline constexpr uint32_t kQuiet = 0x400000;
inline constexpr uint32_t kFloatInf = 0x7F800000;
inline constexpr uint32_t kNanFromWide = 0xFFFF;  // as a bf16: from f32, f64
inline constexpr uint32_t kNanFromNarrow = 0x7FC0;

// yes ? a : b, with both computed: compilers don't turn a branch around
// floating-point arithmetic into a vector mask.
template <class T>
CKPT_HD T pick(bool yes, T a, T b) {
  const T mask = T{0} - static_cast<T>(yes);
  return (a & mask) | (b & ~mask);
}

// a > b of numbers below 2^31: vectors before AVX-512 compare only signed ones.
CKPT_HD bool above(uint32_t a, uint32_t b) {
  return static_cast<int32_t>(a) > static_cast<int32_t>(b);
}

// A float of sign, at most 8 bits of exponent and `man` bits of mantissa with
// the given bias, special values aside; exact.
CKPT_HD uint32_t widen(uint32_t code, uint32_t man, uint32_t bias) {
  const uint32_t moved = code << (23 - man);
  // Subnormal: as if it had the implicit one, minus that.
  const uint32_t least = (128 - bias) << 23;
  const float tiny = bits_as<float>(moved | least) - bits_as<float>(least);
  return pick(code >> man != 0, moved + ((127 - bias) << 23),
              bits_as<uint32_t>(tiny));
}

// The reverse, to nearest even, for a finite f32 without its sign. A result
// beyond the largest code means that the value is too large.
CKPT_HD uint32_t narrow(uint32_t bits, uint32_t man, uint32_t bias) {
  const uint32_t least = 128 - bias;  // exponent of the least normal number
  const uint32_t shift = 23 - man;
  const uint32_t odd = (bits >> shift) & 1;
  const uint32_t rounded = bits + odd + (1u << (shift - 1)) - 1;
  const uint32_t normal = (rounded >> shift) - ((127 - bias) << man);
  // Subnormal: the addition itself rounds a sum whose last bit is worth one.
  const uint32_t one = (151 - bias - man) << 23;
  const float sum = bits_as<float>(bits) + bits_as<float>(one);
  return pick(above(least << 23, bits), bits_as<uint32_t>(sum) - one, normal);
}

CKPT_HD uint32_t f16_to_float(uint32_t half) {
  const uint32_t sign = (half & 0x8000) << 16;
  const uint32_t code = half & 0x7FFF;
  const uint32_t payload = (code & 0x3FF) << 13;
  const uint32_t special = kFloatInf | payload | pick(payload != 0, kQuiet, 0u);
  return sign | pick(above(0x7C00, code), widen(code, 10, 15), special);
}

CKPT_HD uint32_t bf16_to_float(uint32_t bits) { return bits << 16; }

CKPT_HD uint32_t e4m3_to_float(uint32_t byte) {
  const uint32_t sign = (byte & 0x80) << 24;
  const uint32_t code = byte & 0x7F;
  return sign | pick(code == 0x7F, 0x7FF00000u, widen(code, 3, 7));
}

CKPT_HD uint32_t e5m2_to_float(uint32_t byte) {
  return f16_to_float(byte << 8);
}

// A NaN is encoded where minus zero would be.
CKPT_HD uint32_t fnuz_to_float(uint32_t byte, uint32_t man, uint32_t bias) {
  const uint32_t number = ((byte & 0x80) << 24) | widen(byte & 0x7F, man, bias);
  return pick(byte == 0x80, 0x7F800001u, number);
}

// Powers of two, 2^-127 the least.
CKPT_HD uint32_t e8m0_to_float(uint32_t byte) {
  const uint32_t power = pick(byte == 0, 0x00400000u, byte << 23);
  return pick(byte == 0xFF, 0x7F800001u, power);
}

CKPT_HD bool is_nan(uint32_t bits) {
  return above(bits & 0x7FFFFFFF, kFloatInf);
}

CKPT_HD uint32_t float_to_f16(uint32_t bits) {
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t size = bits & 0x7FFFFFFF;
  const uint32_t code = narrow(size, 10, 15);
  const uint32_t finite = pick(above(code, 0x7C00), 0x7C00u, code);
  const uint32_t nan = 0x7E00 | ((size >> 13) & 0x3FF);
  return sign | pick(is_nan(size), nan, finite);
}

CKPT_HD uint32_t float_to_bf16(uint32_t bits, uint32_t nan) {
  const uint32_t rounded = bits + ((bits >> 16) & 1) + 0x7FFF;
  return pick(is_nan(bits), nan << 16, rounded) >> 16;
}

// The type has no infinity: what is too large becomes the largest, 448.
CKPT_HD uint32_t float_to_e4m3(uint32_t bits) {
  const uint32_t sign = (bits >> 24) & 0x80;
  const uint32_t size = bits & 0x7FFFFFFF;
  const uint32_t code = narrow(size, 3, 7);
  const uint32_t number =
      pick(above(code, 0x7E) || size == kFloatInf, 0x7Eu, code);
  return sign | pick(is_nan(size), 0x7Fu, number);
}

CKPT_HD uint32_t float_to_e5m2(uint32_t bits) {
  const uint32_t sign = (bits >> 24) & 0x80;
  const uint32_t size = bits & 0x7FFFFFFF;
  const uint32_t code = narrow(size, 2, 15);
  const uint32_t number = pick(above(code, 0x7C), 0x7Cu, code);
  return sign | pick(is_nan(size), 0x7Fu, number);
}

CKPT_HD uint32_t float_to_fnuz(uint32_t bits, uint32_t man, uint32_t bias) {
  const uint32_t sign = (bits >> 24) & 0x80;
  const uint32_t size = bits & 0x7FFFFFFF;
  const uint32_t code = narrow(size, man, bias);
  const uint32_t number = code | pick(code != 0, sign, 0u);
  return pick(above(size, kFloatInf - 1) || above(code, 0x7F), 0x80u, number);
}

// To the nearer power; halfway (a mantissa of one half) to the even exponent.
CKPT_HD uint32_t float_to_e8m0(uint32_t bits) {
  const uint32_t exponent = (bits >> 23) & 0xFF;
  const uint32_t mantissa = bits & 0x7FFFFF;
  const uint32_t up = pick(exponent != 0, uint32_t{above(mantissa, kQuiet - 1)},
                           uint32_t{above(mantissa, kQuiet)});
  return pick(exponent == 0xFF, 0xFFu, exponent + up);
}

CKPT_HD uint32_t double_to_float(uint64_t bits) {
  const auto sign = static_cast<uint32_t>(bits >> 32) & 0x80000000;
  const uint64_t size = bits & 0x7FFFFFFFFFFFFFFF;
  const uint32_t nan = sign | kFloatInf | kQuiet |
                       (static_cast<uint32_t>(size >> 29) & 0x7FFFFF);
  const auto number = static_cast<float>(bits_as<double>(bits));
  return pick(static_cast<int64_t>(size) > 0x7FF0000000000000, nan,
              bits_as<uint32_t>(number));
}

CKPT_HD uint64_t float_to_double(uint32_t bits) {
  const uint64_t nan = (uint64_t{bits & 0x80000000} << 32) |
                       0x7FF8000000000000 | (uint64_t{bits & 0x7FFFFF} << 29);
  const auto number = static_cast<double>(bits_as<float>(bits));
  return pick(is_nan(bits), nan, bits_as<uint64_t>(number));
}

}  // namespace ckpt::numbers
