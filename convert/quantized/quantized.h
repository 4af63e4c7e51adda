// SPDX-License-Identifier: Apache-2.0
// Weights that are codes, and the scales that turn them into numbers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::families {

struct QuantizationConfig;

// A low-bit weight, and the tensors that determine its numbers:
//
//   a.weight (f8, i8)        a.weight_scale_inv, a.weight_scale, a.scales …
//   a.qweight, a.weight_packed (i32, u8)      a.scales, a.weight_scale
//   a_blocks (u8)            a_scales
//
// and whole numbers of two dimensions or more beside floats of their module.
struct QuantizedWeight {
  std::string name;
  DType dtype;
  std::vector<std::string> scales;  // those that are there, at least one
};
std::vector<QuantizedWeight> quantized_weights(const Catalog& catalog);

// A float of eight bits, but for e8m0: exponents, which only scales are.
bool is_small_float(DType dtype);

// Whose they are, by the configuration or the names: "hqq", "TensorRT-LLM".
std::string kind_of(const QuantizedWeight& weight, const Catalog& catalog);

// What to do about a refusal of codes: --dtype where it would work.
std::string dequantize_hint(const Catalog& catalog);

// "a.weight (f8_e4m3 with a.weight_scale_inv) and 3 more"
std::string describe(const std::vector<QuantizedWeight>& weights);

// Throws unfaithful_error if the catalog has one of the weights but not all its
// scales: its codes would be taken for numbers.
void check_scales(const std::vector<QuantizedWeight>& weights,
                  const Catalog& catalog);

// Call after renaming, with what there was before: throws unfaithful_error if
// codes and scales no longer have each other's names.
void check_together(const std::vector<QuantizedWeight>& before,
                    const Catalog& catalog);

// Call before dequantizing: throws unfaithful_error for codes of that
// configuration that no rule covers (their scales would be cast alone), and for
// scales of activations, which belong to no weight.
void check_unknown_codes(const Catalog& catalog,
                         const QuantizationConfig& config);
void check_activation_scales(const Catalog& catalog);

// k_scale and the like: of an fp8 cache of keys and values.
bool is_cache_scale(std::string_view name);

// Call after dequantizing, when quantization_config goes: without its
// kv_cache_scheme no reader scales keys and values. Warns with the number of
// k_scale, v_scale and the like that it removes.
void drop_cache_scales(Catalog& catalog);

// Call before --dtype: throws unfaithful_error for quantized weights and for
// floats of eight bits that may be codes, and pins tensors whose dtype never
// follows the model's (router biases, scales).
void prepare_cast(Catalog& catalog, DType dtype);

}  // namespace ckpt::families
