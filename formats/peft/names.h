// SPDX-License-Identifier: Apache-2.0
// How libraries name the parts of an adapter. One table for all of them:
//
//   peft        base_model.model.M.lora_A[.default].weight        [r, in]
//   diffusers   unet.M.lora_A.weight, M.lora.down.weight
//   kohya       lora_unet_M.lora_down.weight, .lora_up, .alpha; M with '_'
//   mlx         M.lora_a                                          [in, r]
//   torchtune   layers.0.attn.q_proj.lora_a.weight, .magnitude
//   gguf        blk.0.attn_q.weight.lora_a
//   litgpt      transformer.h.0.attn.qkv.lora_A: q, k, v in one
//   bridge      decoder.layers.0.….linear_qkv.adapter.linear_in.weight
//   LoHa        M.hada_w1_a, in the names of PEFT, kohya, diffusers; LoKr's
//               M.lokr_w1, M.lokr_w2_a likewise
//   nemo ….self_attention.adapter_layer.lora_kqv_adapter.linear_in.weight
//
// The same names stand in any container: a file, a folder, DCP, DeepSpeed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ckpt/catalog.h"

namespace ckpt::peft {

// What PEFT puts before the names of a base.
inline constexpr std::string_view kPrefix = "base_model.model.";

// Whose names the modules of the base have.
enum class Modules : uint8_t {
  kTransformers,
  kFlat,  // of any model, with '_' where the model has '.'
  kAny,   // of any model
  kMegatron,
  kTorchtune,
  kLitgpt,
  kGguf,
};

struct Dialect {
  std::string_view name, owner;
  Modules modules = Modules::kTransformers;
  bool turned = false;  // factors are stored transposed
  // A file without alpha is defined to have the rank's.
  bool alpha_is_rank = false;
};

enum class Role : uint8_t {
  kA,
  kB,
  kBias,  // of B
  kMagnitude,
  kAlpha,
  kFactor,  // of LoHa's or LoKr's products: `what` is its name
  kOther,   // what ckpt can't add; `what` says what it is
};

struct Part {
  const Dialect* dialect = nullptr;
  Role role = Role::kOther;
  std::string component;  // "unet", "te1": of a model of several; "" if none
  std::string module;     // in the dialect's names
  std::string what;
  bool embedding = false;
  bool live = false;  // with the adapter's own name: lora_A.default.weight
};

// Nothing for a tensor that is not a part of an adapter.
std::optional<Part> part_of(std::string_view name);

// The dialect of a catalog's factors; null if it has none.
const Dialect* dialect_of(const Catalog& catalog);

// The adapter's file in a folder, by the names that the libraries write; "" if
// there is none of them.
std::string file_in(const std::string& folder);

// The name that Megatron-Bridge gives a part of NeMo 1's; nothing for others.
std::optional<std::string> bridge_name(std::string_view name);

// What a live model calls the frozen weight that factors are added to. The name
// without that: "q_proj.base_layer.weight", "linear_qkv.to_wrap.weight";
// nothing for other names.
std::optional<std::string> without_wrap(std::string_view name);

// The name without ".modules_to_save.default", which a state dict has.
std::string without_saved(std::string name);

// The name without what PEFT and wrappers put before the base's.
std::string_view in_base_model(std::string_view name);

}  // namespace ckpt::peft
