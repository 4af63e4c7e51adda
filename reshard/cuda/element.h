// SPDX-License-Identifier: Apache-2.0
// Casts of one element, for the types that the module knows by number.
//
// Every source is first one of four wide kinds, without loss:
//
//   f32 f16 bf16 f8       -> the bits of a float
//   f64                   -> the bits of a double
//   signed, small, bool   -> int64
//   u64                   -> uint64
//
// and every target is made from those by the rules of
// reshard/numbers/numbers.h.
#pragma once

#include "reshard/cuda/abi.h"
#include "reshard/numbers/numbers.h"

namespace ckpt::cuda {

using namespace numbers;

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

// True if this file can cast `from` to `to`.
CKPT_HD constexpr bool can_cast(uint32_t from, uint32_t to) {
  const bool from_float = from <= CKPT_CUDA_E8M0;
  const bool to_integer = to > CKPT_CUDA_E8M0 && to != CKPT_CUDA_BOOL;
  return from < CKPT_CUDA_TYPES && to < CKPT_CUDA_TYPES &&
         !(from_float && to_integer);
}

// A stored element (its bits in the low end) as the wide kind of its type.
CKPT_HD uint64_t to_wide(uint32_t type, uint64_t bits) {
  const auto low = static_cast<uint32_t>(bits);
  switch (type) {
    case CKPT_CUDA_F16:
      return f16_to_float(low);
    case CKPT_CUDA_BF16:
      return bf16_to_float(low);
    case CKPT_CUDA_E4M3:
      return e4m3_to_float(low);
    case CKPT_CUDA_E5M2:
      return e5m2_to_float(low);
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

// Zero of either sign is false; everything else, including NaN, is true.
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
      return float_to_bf16(wide_to_float(kind, wide), from <= CKPT_CUDA_F32
                                                          ? kNanFromWide
                                                          : kNanFromNarrow);
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
