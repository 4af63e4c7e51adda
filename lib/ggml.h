// SPDX-License-Identifier: Apache-2.0
// The element types of ggml, by which GGUF files store tensors. Most of them
// keep their elements in blocks of 32 to 256, each with scales of its own: the
// size of one element is no whole number of bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "ckpt/dtype.h"

namespace ckpt {

// Values are ggml's own, as files store them. Those without a name here
// belonged to types that ggml has removed; no file says how large their blocks
// are.
enum class GgmlType : uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q8_1 = 9,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  q8_k = 15,
  iq2_xxs = 16,
  iq2_xs = 17,
  iq3_xxs = 18,
  iq1_s = 19,
  iq4_nl = 20,
  iq3_s = 21,
  iq2_s = 22,
  iq4_xs = 23,
  i8 = 24,
  i16 = 25,
  i32 = 26,
  i64 = 27,
  f64 = 28,
  iq1_m = 29,
  bf16 = 30,
  tq1_0 = 34,
  tq2_0 = 35,
  mxfp4 = 39,
  nvfp4 = 40,
  q1_0 = 41,
  q2_0 = 42,
};

struct GgmlInfo {
  GgmlType type;
  std::string_view name;       // "Q4_0", as in the names of files
  uint32_t elements;           // of a block; 1 for plain numbers
  uint32_t bytes;              // of a block
  std::optional<DType> dtype;  // of plain numbers
  // What reshard/sources/decode_ggml.h does.
  bool decodes = false;  // blocks to numbers
  bool encodes = false;  // numbers to blocks
};

// All types, in the order of their values.
std::span<const GgmlInfo> all_ggml_types();

// Null if ggml has no such type.
const GgmlInfo* ggml_info(uint32_t id);
inline const GgmlInfo* ggml_info(GgmlType type) {
  return ggml_info(static_cast<uint32_t>(type));
}
// By its name in upper or lower case: "Q8_0", "q8_0".
const GgmlInfo* ggml_from_name(std::string_view name);

}  // namespace ckpt
