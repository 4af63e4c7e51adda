// SPDX-License-Identifier: Apache-2.0
// What config.json says about quantized weights.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "lib/text/json.h"

namespace ckpt::families {

struct QuantizationConfig {
  bool there = false;
  std::string method;  // quant_method: "fp8", "gptq", "compressed-tensors" …
  // gptq: "gptq" stores zeros less one, "gptq_v2" as they are; else a layout
  // for one kernel
  std::string checkpoint_format;
  std::string version;                // awq: "gemm", "gemv" …
  uint64_t bits = 0, group_size = 0;  // 0: not said
  std::vector<uint64_t> block;        // rows, columns
  bool ordered = false;               // gptq: desc_act, rows count in an order
  bool asymmetric = false;            // compressed-tensors: there are zeros
  bool overrides = false;             // some modules have numbers of their own
  std::string packing;                // auto-round: packing_format
  std::string algorithm;              // modelopt: quant_algo
  // compressed-tensors: what all groups of modules agree about, and the formats
  // of all
  std::string type, strategy;
  std::vector<std::string> formats;
  nlohmann::json quanto;  // quanto_qmap.json: module -> types
  struct Affine {
    uint64_t bits = 0, group_size = 0;
    std::string mode = "affine";
  };
  Affine affine;  // mlx: of all modules, and of some by name
  std::map<std::string, Affine> affine_of;
  // Why codes and scales do not determine the weights; "" if they do.
  std::string hindrance;
};

// Reads config.json among the sidecars, its text_config, or
// quantize_config.json and quant_config.json of older checkpoints. Throws
// input_error for one that can't be read.
QuantizationConfig quantization_config(const Catalog& catalog);
// The same as it is written; null if there is none.
nlohmann::json said_quantization(const Catalog& catalog);

// Removes the key from config.json, leaving the rest of its text; older files
// that say the same stop being sidecars.
void drop_quantization_config(Catalog& catalog);

// A member that is a string; else "".
std::string word_in(const nlohmann::json& object, const std::string& key);

// The content of the file, or its future content.
std::string sidecar_text(const Sidecar& sidecar);

// `text` without the members of that name, at any depth.
std::string without_member(const std::string& text, const std::string& key);

}  // namespace ckpt::families
