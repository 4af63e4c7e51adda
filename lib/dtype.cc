// SPDX-License-Identifier: Apache-2.0
#include "ckpt/dtype.h"

#include <array>

namespace ckpt {
namespace {

using enum DType;

constexpr std::array kTypes = {
    // clang-format off
    DTypeInfo{f64, "f64", 64, 8, "F64", "float64", "DoubleStorage"},
    DTypeInfo{f32, "f32", 32, 4, "F32", "float32", "FloatStorage"},
    DTypeInfo{f16, "f16", 16, 2, "F16", "float16", "HalfStorage"},
    DTypeInfo{bf16, "bf16", 16, 2, "BF16", "bfloat16", "BFloat16Storage"},
    DTypeInfo{f8_e4m3, "f8_e4m3", 8, 1, "F8_E4M3", "float8_e4m3fn", ""},
    DTypeInfo{f8_e5m2, "f8_e5m2", 8, 1, "F8_E5M2", "float8_e5m2", ""},
    DTypeInfo{f8_e4m3fnuz, "f8_e4m3fnuz", 8, 1, "F8_E4M3FNUZ",
              "float8_e4m3fnuz", ""},
    DTypeInfo{f8_e5m2fnuz, "f8_e5m2fnuz", 8, 1, "F8_E5M2FNUZ",
              "float8_e5m2fnuz", ""},
    DTypeInfo{f8_e8m0, "f8_e8m0", 8, 1, "F8_E8M0", "float8_e8m0fnu", ""},
    DTypeInfo{f6_e2m3, "f6_e2m3", 6, 1, "F6_E2M3", "", ""},
    DTypeInfo{f6_e3m2, "f6_e3m2", 6, 1, "F6_E3M2", "", ""},
    DTypeInfo{f4, "f4", 4, 1, "F4", "", ""},
    DTypeInfo{f4x2, "f4x2", 8, 1, "", "float4_e2m1fn_x2", ""},
    DTypeInfo{i64, "i64", 64, 8, "I64", "int64", "LongStorage"},
    DTypeInfo{i32, "i32", 32, 4, "I32", "int32", "IntStorage"},
    DTypeInfo{i16, "i16", 16, 2, "I16", "int16", "ShortStorage"},
    DTypeInfo{i8, "i8", 8, 1, "I8", "int8", "CharStorage"},
    DTypeInfo{u64, "u64", 64, 8, "U64", "uint64", ""},
    DTypeInfo{u32, "u32", 32, 4, "U32", "uint32", ""},
    DTypeInfo{u16, "u16", 16, 2, "U16", "uint16", ""},
    DTypeInfo{u8, "u8", 8, 1, "U8", "uint8", "ByteStorage"},
    DTypeInfo{bool_, "bool", 8, 1, "BOOL", "bool", "BoolStorage"},
    DTypeInfo{c128, "c128", 128, 8, "", "complex128", "ComplexDoubleStorage"},
    DTypeInfo{c64, "c64", 64, 4, "C64", "complex64", "ComplexFloatStorage"},
    DTypeInfo{c32, "c32", 32, 2, "", "complex32", ""},
    DTypeInfo{qi8, "qi8", 8, 1, "", "qint8", "QInt8Storage"},
    DTypeInfo{qu8, "qu8", 8, 1, "", "quint8", "QUInt8Storage"},
    DTypeInfo{qi32, "qi32", 32, 4, "", "qint32", "QInt32Storage"},
    DTypeInfo{qu4x2, "qu4x2", 8, 1, "", "quint4x2", "QUInt4x2Storage"},
    DTypeInfo{qu2x4, "qu2x4", 8, 1, "", "quint2x4", "QUInt2x4Storage"},
    DTypeInfo{bits8, "bits8", 8, 1, "", "bits8", ""},
    DTypeInfo{bits16, "bits16", 16, 2, "", "bits16", ""},
    DTypeInfo{bits1x8, "bits1x8", 8, 1, "", "bits1x8", ""},
    DTypeInfo{bits2x4, "bits2x4", 8, 1, "", "bits2x4", ""},
    DTypeInfo{bits4x2, "bits4x2", 8, 1, "", "bits4x2", ""},
    // clang-format on
};

std::optional<DType> find(std::string_view name,
                          std::string_view DTypeInfo::*member) {
  if (name.empty()) return std::nullopt;
  for (const DTypeInfo& row : kTypes)
    if (row.*member == name) return row.dtype;
  return std::nullopt;
}

}  // namespace

std::span<const DTypeInfo> all_dtypes() { return kTypes; }

const DTypeInfo& info(DType dtype) {
  return kTypes[static_cast<size_t>(dtype)];
}

bool same_bytes(DType a, DType b) {
  const auto stored = [](DType dtype) {
    switch (dtype) {
      case qi8:
        return i8;
      case qu8:
        return u8;
      case qi32:
        return i32;
      case f4x2:
        return f4;
      default:
        return dtype;
    }
  };
  return stored(a) == stored(b);
}

std::optional<DType> dtype_from_name(std::string_view name) {
  return find(name, &DTypeInfo::name);
}
std::optional<DType> dtype_from_safetensors(std::string_view name) {
  return find(name, &DTypeInfo::safetensors);
}
std::optional<DType> dtype_from_torch(std::string_view name) {
  return find(name, &DTypeInfo::torch);
}
std::optional<DType> dtype_from_storage(std::string_view class_name) {
  return find(class_name, &DTypeInfo::storage);
}

}  // namespace ckpt
