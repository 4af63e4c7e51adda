// SPDX-License-Identifier: Apache-2.0
// zarr's names for element types, and fill values as bytes.
//
//   "<f4"  byte order (< little, > big, | none), kind, bytes of an element
//   "bfloat16"  no name of zarr's, but what Megatron writes: little-endian
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "ckpt/dtype.h"

namespace ckpt::zarr {

struct TypeName {
  DType dtype = DType::f32;
  bool big_endian = false;
};
// Nothing for types that no tensor has: text, dates, records.
std::optional<TypeName> parse_type(std::string_view name);

// "<f4"; empty for a dtype that zarr has no name for.
std::string_view type_name(DType dtype);

// The little-endian bytes of one element with the given fill value: a number,
// "NaN", "Infinity", "-Infinity", true, or [real, imaginary]. Nothing if it is
// not a value of that dtype.
std::optional<std::string> fill_bytes(DType dtype, const nlohmann::json& value);

}  // namespace ckpt::zarr
