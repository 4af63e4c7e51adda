// SPDX-License-Identifier: Apache-2.0
// Test data for casts: values where rounding matters, and torch's own casts of
// them.
#pragma once

#include <cstddef>
#include <random>
#include <span>
#include <vector>

#include "ckpt/dtype.h"

namespace ckpt::test {

inline constexpr DType kNumbers[] = {
    DType::f64,     DType::f32,     DType::f16,         DType::bf16,
    DType::f8_e4m3, DType::f8_e5m2, DType::f8_e4m3fnuz, DType::f8_e5m2fnuz,
    DType::f8_e8m0, DType::i64,     DType::i32,         DType::i16,
    DType::i8,      DType::u64,     DType::u32,         DType::u16,
    DType::u8,      DType::bool_};
inline constexpr std::span<const DType> kFloats(kNumbers, 9);

// Every value of an 8- or 16-bit type. For f32: every sign, exponent and upper
// 7 mantissa bits, with lower bits around the ties of all narrower types, and a
// million others. For f64: these f32 values, their neighbours, and others. For
// integers: all magnitudes.
std::vector<std::byte> cast_values(DType dtype, std::mt19937_64& random);

// Returns false and says why if torch's casts aren't available.
bool have_torch();

// torch's casts, with the bits of an element that isn't among the last of a
// run: there PyTorch gives some NaNs other bits (reshard/numbers/numbers.h).
std::vector<std::byte> cast_by_torch(DType from, DType to,
                                     const std::vector<std::byte>& in);

}  // namespace ckpt::test
