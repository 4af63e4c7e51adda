// SPDX-License-Identifier: Apache-2.0
#include "lib/ggml.h"

#include <algorithm>
#include <array>

namespace ckpt {
namespace {

// Q8_1 and Q8_K are what activations become while ggml multiplies; no file has
// them. The gguf package gives Q8_1 four bytes more than ggml does.
constexpr auto kGgmlTypes = [] {
  using enum GgmlType;
  constexpr auto kNone = std::nullopt;
  return std::to_array<GgmlInfo>({
      // clang-format off
    {f32, "F32", 1, 4, DType::f32},
    {f16, "F16", 1, 2, DType::f16},
    {q4_0, "Q4_0", 32, 18, kNone, true, true},
    {q4_1, "Q4_1", 32, 20, kNone, true, true},
    {q5_0, "Q5_0", 32, 22, kNone, true, true},
    {q5_1, "Q5_1", 32, 24, kNone, true, true},
    {q8_0, "Q8_0", 32, 34, kNone, true, true},
    {q8_1, "Q8_1", 32, 36, kNone},
    {q2_k, "Q2_K", 256, 84, kNone, true},
    {q3_k, "Q3_K", 256, 110, kNone, true},
    {q4_k, "Q4_K", 256, 144, kNone, true},
    {q5_k, "Q5_K", 256, 176, kNone, true},
    {q6_k, "Q6_K", 256, 210, kNone, true},
    {q8_k, "Q8_K", 256, 292, kNone},
    {iq2_xxs, "IQ2_XXS", 256, 66, kNone, true},
    {iq2_xs, "IQ2_XS", 256, 74, kNone, true},
    {iq3_xxs, "IQ3_XXS", 256, 98, kNone, true},
    {iq1_s, "IQ1_S", 256, 50, kNone, true},
    {iq4_nl, "IQ4_NL", 32, 18, kNone, true},
    {iq3_s, "IQ3_S", 256, 110, kNone, true},
    {iq2_s, "IQ2_S", 256, 82, kNone, true},
    {iq4_xs, "IQ4_XS", 256, 136, kNone, true},
    {i8, "I8", 1, 1, DType::i8},
    {i16, "I16", 1, 2, DType::i16},
    {i32, "I32", 1, 4, DType::i32},
    {i64, "I64", 1, 8, DType::i64},
    {f64, "F64", 1, 8, DType::f64},
    {iq1_m, "IQ1_M", 256, 56, kNone, true},
    {bf16, "BF16", 1, 2, DType::bf16},
    {tq1_0, "TQ1_0", 256, 54, kNone, true, true},
    {tq2_0, "TQ2_0", 256, 66, kNone, true, true},
    {mxfp4, "MXFP4", 32, 17, kNone, true, true},
    {nvfp4, "NVFP4", 64, 36, kNone, true},
    {q1_0, "Q1_0", 128, 18, kNone, true},
    {q2_0, "Q2_0", 64, 18, kNone, true},
      // clang-format on
  });
}();

char upper_letter(char c) {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
}

}  // namespace

std::span<const GgmlInfo> all_ggml_types() { return kGgmlTypes; }

const GgmlInfo* ggml_info(uint32_t id) {
  const auto* row = std::ranges::find(kGgmlTypes, id, [](const GgmlInfo& info) {
    return static_cast<uint32_t>(info.type);
  });
  return row == kGgmlTypes.end() ? nullptr : row;
}

const GgmlInfo* ggml_from_name(std::string_view name) {
  const auto* row = std::ranges::find_if(kGgmlTypes, [&](const GgmlInfo& info) {
    return std::ranges::equal(info.name, name, {}, {}, upper_letter);
  });
  return row == kGgmlTypes.end() ? nullptr : row;
}

}  // namespace ckpt
