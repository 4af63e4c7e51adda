// SPDX-License-Identifier: Apache-2.0
// Element types. Each has one row in dtype.cc: its name here (as `inspect`
// prints it), its size in bits, and its names in safetensors and torch.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace ckpt {

enum class DType : uint8_t {
  f64,
  f32,
  f16,
  bf16,
  f8_e4m3,
  f8_e5m2,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  f8_e8m0,
  f6_e2m3,
  f6_e3m2,
  f4,    // bit-packed: safetensors only
  f4x2,  // torch float4_e2m1fn_x2: two values to a byte
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
  bool_,
  c128,
  c64,
  c32,
  // torch's quantized and raw types; carried whole, never cast
  qi8,
  qu8,
  qi32,
  qu4x2,
  qu2x4,
  bits8,
  bits16,
  bits1x8,
  bits2x4,
  bits4x2,
};

struct DTypeInfo {
  DType dtype;
  std::string_view name;         // "bf16"
  uint32_t bits;                 // of one element as the shape counts them
  uint32_t swap;                 // bytes of the unit that endianness swaps
  std::string_view safetensors;  // "BF16"; empty: no name there
  std::string_view torch;        // "bfloat16"; empty: none
  std::string_view storage;      // "BFloat16Storage"; empty: v3/untyped
};

// All dtypes, in the order of the enum.
std::span<const DTypeInfo> all_dtypes();

const DTypeInfo& info(DType dtype);
inline std::string_view name(DType dtype) { return info(dtype).name; }

// True if the stored bytes of `a` serve as `b` unchanged: the same dtype, a
// quantized type and its integers, torch's f4x2 and safetensors' f4.
bool same_bytes(DType a, DType b);

std::optional<DType> dtype_from_name(std::string_view name);
std::optional<DType> dtype_from_safetensors(std::string_view name);
std::optional<DType> dtype_from_torch(std::string_view name);
std::optional<DType> dtype_from_storage(std::string_view class_name);

}  // namespace ckpt
