// Casts of one element, with the bits that PyTorch gives on the CPU.
//
// Every source is first one of four wide kinds, without loss:
//
//   f32 f16 bf16 f8       -> the bits of a float
//   f64                   -> the bits of a double
//   signed, small, bool   -> int64
//   u64                   -> uint64
//
// and every target is made from those. Narrow floats go through f32, as in
// PyTorch: an f64 rounds twice on its way to bf16. Rounding is to nearest, ties
// to even. Done with integers, so that NaNs keep the bits that they have on the
// host: a GPU's own conversions replace them by one value.
//
// NaNs, as found on x86-64 with AVX2 or AVX-512:
//   to f64, f32, f16   sign and the upper bits of the payload, made quiet
//   to bf16            0xffff from f32 and f64, 0x7fc0 from narrower ones
//   to f8              the one NaN of the type; e4m3 and e5m2 keep the sign
// Two pairs have other bits in the last elements of a run on the host (f64 to
// bf16, f16 to f32): there a NaN is what it is before those last elements.
#pragma once

#include "reshard/cuda/abi.h"
#include "reshard/cuda/hd.h"

namespace ckpt::cuda {

enum class Kind : uint32_t { kFloat, kDouble, kSigned, kUnsigned };

CKPT_HD constexpr Kind kind_of(uint32_t type) {
  if (type == CKPT_CUDA_F64) return Kind::kDouble;
  if (type <= CKPT_CUDA_E8M0) return Kind::kFloat;
  return type == CKPT_CUDA_U64 ? Kind::kUnsigned : Kind::kSigned;
}

CKPT_HD constexpr uint32_t size_of(uint32_t type) {
  switch (type) {
    case CKPT_CUDA_F64:
    case CKPT_CUDA_I64:
    case CKPT_CUDA_U64:
      return 8;
    case CKPT_CUDA_F32:
    case CKPT_CUDA_I32:
    case CKPT_CUDA_U32:
      return 4;
    case CKPT_CUDA_F16:
    case CKPT_CUDA_BF16:
    case CKPT_CUDA_I16:
    case CKPT_CUDA_U16:
      return 2;
    default:
      return 1;
  }
}

// 1 if `from` casts to `to` here.
CKPT_HD constexpr bool can_cast(uint32_t from, uint32_t to) {
  const bool from_float = from <= CKPT_CUDA_E8M0;
  const bool to_integer = to > CKPT_CUDA_E8M0 && to != CKPT_CUDA_BOOL;
  return from < CKPT_CUDA_TYPES && to < CKPT_CUDA_TYPES &&
         !(from_float && to_integer);
}

inline constexpr uint32_t kQuiet = 0x400000;
inline constexpr uint32_t kFloatInf = 0x7F800000;

// A float of sign, 8-bit-or-less exponent and `man` bits of mantissa with the
// given bias, without its specials; exact.
CKPT_HD uint32_t widen(uint32_t code, uint32_t man, uint32_t bias) {
  const uint32_t exponent = code >> man;
  const uint32_t mantissa = code & ((1u << man) - 1);
  if (exponent != 0)
    return ((exponent + 127 - bias) << 23) | (mantissa << (23 - man));
  // mantissa * 2^(1 - bias - man)
  const float unit = bits_as<float>((128 - bias - man) << 23);
  return bits_as<uint32_t>(static_cast<float>(mantissa) * unit);
}

// The other way, to nearest even, of a finite f32 without its sign. A result
// beyond the largest code says that the value is too large.
CKPT_HD uint32_t narrow(uint32_t bits, uint32_t man, uint32_t bias) {
  const uint32_t least = 128 - bias;  // exponent of the least normal number
  const uint32_t exponent = bits >> 23;
  uint32_t shift = 23 - man;
  if (exponent >= least) {
    const uint32_t odd = (bits >> shift) & 1;
    const uint32_t rounded = bits + odd + (1u << (shift - 1)) - 1;
    return (rounded >> shift) - ((127 - bias) << man);
  }
  shift += least - exponent;
  if (shift > 25 || exponent == 0) return 0;
  const uint32_t mantissa = (bits & 0x7FFFFF) | 0x800000;
  const uint32_t odd = (mantissa >> shift) & 1;
  return (mantissa + odd + (1u << (shift - 1)) - 1) >> shift;
}

CKPT_HD uint32_t f16_to_float(uint32_t half) {
  const uint32_t sign = (half & 0x8000) << 16;
  const uint32_t code = half & 0x7FFF;
  if (code < 0x7C00) return sign | widen(code, 10, 15);
  const uint32_t payload = (code & 0x3FF) << 13;
  return sign | kFloatInf | payload | (payload ? kQuiet : 0);
}

CKPT_HD uint32_t e4m3_to_float(uint32_t byte) {
  const uint32_t sign = (byte & 0x80) << 24;
  const uint32_t code = byte & 0x7F;
  return sign | (code == 0x7F ? 0x7FF00000 : widen(code, 3, 7));
}

// A NaN is where minus zero would be.
CKPT_HD uint32_t fnuz_to_float(uint32_t byte, uint32_t man, uint32_t bias) {
  if (byte == 0x80) return 0x7F800001;
  return ((byte & 0x80) << 24) | widen(byte & 0x7F, man, bias);
}

// Powers of two, 2^-127 the least.
CKPT_HD uint32_t e8m0_to_float(uint32_t byte) {
  if (byte == 0xFF) return 0x7F800001;
  return byte == 0 ? 0x00400000 : byte << 23;
}

CKPT_HD bool is_nan(uint32_t bits) { return (bits & 0x7FFFFFFF) > kFloatInf; }

CKPT_HD uint32_t float_to_f16(uint32_t bits) {
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t size = bits & 0x7FFFFFFF;
  if (size > kFloatInf) return sign | 0x7E00 | ((size >> 13) & 0x3FF);
  const uint32_t code = narrow(size, 10, 15);
  return sign | (code > 0x7C00 ? 0x7C00 : code);
}

CKPT_HD uint32_t float_to_bf16(uint32_t bits, uint32_t nan) {
  if (is_nan(bits)) return nan;
  return (bits + ((bits >> 16) & 1) + 0x7FFF) >> 16;
}

// There is no infinity: what is too large becomes the largest, 448.
CKPT_HD uint32_t float_to_e4m3(uint32_t bits) {
  const uint32_t sign = (bits >> 24) & 0x80;
  const uint32_t size = bits & 0x7FFFFFFF;
  if (size > kFloatInf) return sign | 0x7F;
  const uint32_t code = size == kFloatInf ? 0x7F : narrow(size, 3, 7);
  return sign | (code > 0x7E ? 0x7E : code);
}

CKPT_HD uint32_t float_to_e5m2(uint32_t bits) {
  const uint32_t sign = (bits >> 24) & 0x80;
  const uint32_t size = bits & 0x7FFFFFFF;
  if (size > kFloatInf) return sign | 0x7F;
  const uint32_t code = narrow(size, 2, 15);
  return sign | (code > 0x7C ? 0x7C : code);
}

CKPT_HD uint32_t float_to_fnuz(uint32_t bits, uint32_t man, uint32_t bias) {
  const uint32_t size = bits & 0x7FFFFFFF;
  const uint32_t code = size >= kFloatInf ? 0x80 : narrow(size, man, bias);
  if (code > 0x7F) return 0x80;
  return code == 0 ? 0 : ((bits >> 24) & 0x80) | code;
}

// To the nearer power; halfway (a mantissa of one half) to the even exponent.
CKPT_HD uint32_t float_to_e8m0(uint32_t bits) {
  const uint32_t exponent = (bits >> 23) & 0xFF;
  const uint32_t mantissa = bits & 0x7FFFFF;
  if (exponent == 0xFF) return 0xFF;
  const bool up = mantissa > kQuiet || (mantissa == kQuiet && exponent > 0);
  return exponent + (up ? 1 : 0);
}

CKPT_HD uint32_t double_to_float(uint64_t bits) {
  const auto sign = static_cast<uint32_t>(bits >> 32) & 0x80000000;
  const uint64_t size = bits & 0x7FFFFFFFFFFFFFFF;
  if (size > 0x7FF0000000000000)
    return sign | kFloatInf | kQuiet |
           (static_cast<uint32_t>(size >> 29) & 0x7FFFFF);
  return bits_as<uint32_t>(static_cast<float>(bits_as<double>(bits)));
}

CKPT_HD uint64_t float_to_double(uint32_t bits) {
  if (is_nan(bits))
    return (uint64_t{bits & 0x80000000} << 32) | 0x7FF8000000000000 |
           (uint64_t{bits & 0x7FFFFF} << 29);
  return bits_as<uint64_t>(static_cast<double>(bits_as<float>(bits)));
}

// A stored element (its bits in the low end) as the wide kind of its type.
CKPT_HD uint64_t to_wide(uint32_t type, uint64_t bits) {
  const auto low = static_cast<uint32_t>(bits);
  switch (type) {
    case CKPT_CUDA_F16:
      return f16_to_float(low);
    case CKPT_CUDA_BF16:
      return uint64_t{low} << 16;
    case CKPT_CUDA_E4M3:
      return e4m3_to_float(low);
    case CKPT_CUDA_E5M2:
      return f16_to_float(low << 8);
    case CKPT_CUDA_E4M3FNUZ:
      return fnuz_to_float(low, 3, 8);
    case CKPT_CUDA_E5M2FNUZ:
      return fnuz_to_float(low, 2, 16);
    case CKPT_CUDA_E8M0:
      return e8m0_to_float(low);
    case CKPT_CUDA_I32:
      return static_cast<uint64_t>(int64_t{static_cast<int32_t>(low)});
    case CKPT_CUDA_I16:
      return static_cast<uint64_t>(int64_t{static_cast<int16_t>(low)});
    case CKPT_CUDA_I8:
      return static_cast<uint64_t>(int64_t{static_cast<int8_t>(low)});
    case CKPT_CUDA_BOOL:
      return low != 0;
    default:  // f64, f32, and integers that need no sign
      return bits;
  }
}

CKPT_HD uint32_t wide_to_float(Kind kind, uint64_t wide) {
  switch (kind) {
    case Kind::kFloat:
      return static_cast<uint32_t>(wide);
    case Kind::kDouble:
      return double_to_float(wide);
    case Kind::kSigned:
      return bits_as<uint32_t>(static_cast<float>(static_cast<int64_t>(wide)));
    default:
      return bits_as<uint32_t>(static_cast<float>(wide));
  }
}

CKPT_HD uint64_t wide_to_double(Kind kind, uint64_t wide) {
  switch (kind) {
    case Kind::kFloat:
      return float_to_double(static_cast<uint32_t>(wide));
    case Kind::kDouble:
      return wide;
    case Kind::kSigned:
      return bits_as<uint64_t>(static_cast<double>(static_cast<int64_t>(wide)));
    default:
      return bits_as<uint64_t>(static_cast<double>(wide));
  }
}

// Zero of either sign is false, everything else, NaN too, is true.
CKPT_HD bool wide_is_true(Kind kind, uint64_t wide) {
  if (kind == Kind::kFloat) return (wide & 0x7FFFFFFF) != 0;
  if (kind == Kind::kDouble) return (wide & 0x7FFFFFFFFFFFFFFF) != 0;
  return wide != 0;
}

CKPT_HD uint64_t from_wide(uint32_t from, uint32_t to, uint64_t wide) {
  const Kind kind = kind_of(from);
  switch (to) {
    case CKPT_CUDA_F64:
      return wide_to_double(kind, wide);
    case CKPT_CUDA_F32:
      return wide_to_float(kind, wide);
    case CKPT_CUDA_F16:
      return float_to_f16(wide_to_float(kind, wide));
    case CKPT_CUDA_BF16:
      return float_to_bf16(wide_to_float(kind, wide),
                           from <= CKPT_CUDA_F32 ? 0xFFFF : 0x7FC0);
    case CKPT_CUDA_E4M3:
      return float_to_e4m3(wide_to_float(kind, wide));
    case CKPT_CUDA_E5M2:
      return float_to_e5m2(wide_to_float(kind, wide));
    case CKPT_CUDA_E4M3FNUZ:
      return float_to_fnuz(wide_to_float(kind, wide), 3, 8);
    case CKPT_CUDA_E5M2FNUZ:
      return float_to_fnuz(wide_to_float(kind, wide), 2, 16);
    case CKPT_CUDA_E8M0:
      return float_to_e8m0(wide_to_float(kind, wide));
    case CKPT_CUDA_BOOL:
      return wide_is_true(kind, wide) ? 1 : 0;
    default:  // integers from integers: the low bits
      return wide;
  }
}

CKPT_HD uint64_t cast_bits(uint32_t from, uint32_t to, uint64_t bits) {
  return from_wide(from, to, to_wide(from, bits));
}

}  // namespace ckpt::cuda
