// SPDX-License-Identifier: Apache-2.0
#include "containers/zarr/dtypes.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace ckpt::zarr {
namespace {

using nlohmann::json;

struct Row {
  std::string_view name;
  DType dtype;
};
constexpr Row kTypes[] = {
    {"|b1", DType::bool_}, {"|u1", DType::u8},    {"|i1", DType::i8},
    {"<i2", DType::i16},   {"<i4", DType::i32},   {"<i8", DType::i64},
    {"<u2", DType::u16},   {"<u4", DType::u32},   {"<u8", DType::u64},
    {"<f2", DType::f16},   {"<f4", DType::f32},   {"<f8", DType::f64},
    {"<c8", DType::c64},   {"<c16", DType::c128},
};

// Rounds a double to nearest, ties to even, into a binary float with that many
// bits of exponent and mantissa.
uint16_t small_float(double value, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 1U << 15 : 0U);
  const int top = ((1 << exponent_bits) - 1) << mantissa_bits;  // infinity
  if (std::isnan(value))
    return static_cast<uint16_t>(top | 1 << (mantissa_bits - 1));
  const double size = std::fabs(value);
  if (std::isinf(size)) return static_cast<uint16_t>(sign | top);
  if (size == 0) return sign;
  const int exponent = std::max(std::ilogb(size), 1 - bias);
  // The mantissa with its leading one; rounding up to the next power of two
  // carries into the exponent by itself.
  const auto mantissa = static_cast<int64_t>(
      std::nearbyint(std::ldexp(size, mantissa_bits - exponent)));
  const int64_t bits =
      mantissa + (int64_t{exponent} + bias - 1) * (int64_t{1} << mantissa_bits);
  return static_cast<uint16_t>(sign | std::min<int64_t>(bits, top));
}

// Values too large become infinity, as in every other conversion.
float to_float(double value) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (std::fabs(value) > std::numeric_limits<float>::max())
    return value > 0 ? kInfinity : -kInfinity;
  return static_cast<float>(value);
}

template <class T>
std::string bytes_of(T value) {  // this program runs on little-endian machines
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

std::optional<double> real(const json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_string()) return std::nullopt;
  const auto& text = value.get_ref<const std::string&>();
  if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (text == "Infinity") return std::numeric_limits<double>::infinity();
  if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

template <class T>
std::optional<std::string> integer(const json& value) {
  using Limits = std::numeric_limits<T>;
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(Limits::max())) return std::nullopt;
    return bytes_of(static_cast<T>(number));
  }
  if (value.is_number_integer()) {
    const auto number = value.get<int64_t>();
    if (number >= 0) return integer<T>(json(static_cast<uint64_t>(number)));
    if (number < static_cast<int64_t>(Limits::min())) return std::nullopt;
    return bytes_of(static_cast<T>(number));
  }
  // 0.0: some writers don't care.
  if (value.is_number_float() && value.get<double>() == 0) return bytes_of(T{});
  return std::nullopt;
}

std::optional<std::string> boolean(const json& value) {
  if (value.is_boolean()) return bytes_of(uint8_t{value.get<bool>()});
  if (value == 0 || value == 1) return bytes_of(uint8_t{value == 1});
  return std::nullopt;
}

std::optional<std::string> floating(DType dtype, const json& value) {
  const auto number = real(value);
  if (!number) return std::nullopt;
  switch (dtype) {
    case DType::f64:
      return bytes_of(*number);
    case DType::f16:
      return bytes_of(small_float(*number, 5, 10));
    case DType::bf16:
      return bytes_of(small_float(*number, 8, 7));
    default:
      return bytes_of(to_float(*number));
  }
}

std::optional<std::string> complex(DType part, const json& value) {
  static const json kZero = 0;
  const bool pair = value.is_array();
  if (pair && value.size() != 2) return std::nullopt;
  const auto re = floating(part, pair ? value[0] : value);
  const auto im = floating(part, pair ? value[1] : kZero);
  if (!re || !im) return std::nullopt;
  return *re + *im;
}

}  // namespace

std::optional<TypeName> parse_type(std::string_view name) {
  if (name == "bfloat16") return TypeName{DType::bf16, false};
  if (name.size() < 3) return std::nullopt;
  const char order = name[0];
  if (order != '<' && order != '>' && order != '|') return std::nullopt;
  for (const Row& row : kTypes) {
    if (row.name.substr(1) != name.substr(1)) continue;
    const bool one_byte = info(row.dtype).bits == 8;
    if (order == '|' && !one_byte) return std::nullopt;
    return TypeName{row.dtype, order == '>' && !one_byte};
  }
  return std::nullopt;
}

std::string_view type_name(DType dtype) {
  if (dtype == DType::bf16) return "bfloat16";
  for (const Row& row : kTypes)
    if (row.dtype == dtype) return row.name;
  return "";
}

std::optional<std::string> fill_bytes(DType dtype, const json& value) {
  switch (dtype) {
    case DType::bool_:
      return boolean(value);
    case DType::u8:
      return integer<uint8_t>(value);
    case DType::i8:
      return integer<int8_t>(value);
    case DType::i16:
      return integer<int16_t>(value);
    case DType::i32:
      return integer<int32_t>(value);
    case DType::i64:
      return integer<int64_t>(value);
    case DType::u16:
      return integer<uint16_t>(value);
    case DType::u32:
      return integer<uint32_t>(value);
    case DType::u64:
      return integer<uint64_t>(value);
    case DType::c64:
      return complex(DType::f32, value);
    case DType::c128:
      return complex(DType::f64, value);
    default:
      return floating(dtype, value);
  }
}

}  // namespace ckpt::zarr
