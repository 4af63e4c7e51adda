// SPDX-License-Identifier: Apache-2.0
// What casts are tested with: values where rounding has something to decide,
// and torch's own casts of them.
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

// Every value of a type of 8 or 16 bits. Of f32: every sign, exponent and
// upper 7 bits of mantissa, with lower ones around the ties of all narrower
// types, and a million others; of f64 what these f32 are, what lies beside
// them, and others. Of integers, all magnitudes.
std::vector<std::byte> cast_values(DType dtype, std::mt19937_64& random);

// Says why if torch's casts can't be had.
bool have_torch();

// Those of torch, in the bits that an element has which is not among the last
// of a run: there PyTorch gives some NaNs other bits (reshard/numbers.h).
std::vector<std::byte> cast_by_torch(DType from, DType to,
                                     const std::vector<std::byte>& in);

}  // namespace ckpt::test
