// SPDX-License-Identifier: Apache-2.0
// Models whose arrangement in vLLM is known.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ckpt/catalog.h"
#include "formats/vllm/config.h"
#include "models/view.h"

namespace ckpt::vllm {

inline constexpr std::string_view kEmbedding = "model.embed_tokens.weight";
inline constexpr std::string_view kHead = "lm_head.weight";
inline constexpr std::string_view kHeadBias = "lm_head.bias";

// What is fused, in that order.
struct Fusion {
  std::string_view to;
  std::span<const std::string_view> from;
};

// Part of a name, and what vLLM calls it. For a tensor in several modules,
// vLLM's is the smallest name (its loader looks for that one).
struct Renaming {
  std::string_view hf;
  std::string_view vllm;
  enum How : uint8_t {
    kSame,
    kTurned,  // HF swaps the last two dimensions
    kRow,     // HF has [1, n], vLLM [n]
  } how = kSame;
};

// HF: MODULE.experts.N.GATE.weight …
struct Experts {
  std::string_view gate, up, down;
};

struct Model {
  std::string_view type;
  bool head;  // a tied head is a parameter with its own name
  bool tied;  // if config.json does not say
  std::span<const Fusion> fusions;
  std::span<const Renaming> renamings = {};
  const Experts* experts = nullptr;  // none: a dense model
  bool latent = false;               // attention is MLA
  // What vLLM always has, whatever config.json says, but transformers may not.
  std::string_view needs = {};
  // Rows of each query and key head are in pairs; vLLM has halves.
  bool paired = false;
  std::string_view embedding = kEmbedding;
  std::string_view output = ".self_attn.o_proj.weight";
};

// Throws unfaithful_error for another model, for a quantized one, or if there
// is no config.json.
const Model& model_of(const Catalog& source,
                      const std::optional<Config>& config);

// The modules that hold the experts' matrices in vLLM 0.33 and in 0.11.
inline constexpr std::string_view kExperts = "experts.routed_experts.";
inline constexpr std::string_view kOldExperts = "experts.";
inline constexpr std::string_view kUp13 = "w13_weight";
inline constexpr std::string_view kDown2 = "w2_weight";

// Reorders each head's rows to 0, 2, 4 … and then 1, 3, 5 …; or back.
families::View turn_heads(const families::View& view, const Config& config,
                          const std::string& name, bool keys, bool halves);

// Turns a Hugging Face name, after fusing, into vLLM's, and back.
std::string vllm_name(const Model& model, std::string name);
std::string hf_name(const Model& model, std::string name);
// By Hugging Face name.
Renaming::How arrangement(const Model& model, std::string_view name);

}  // namespace ckpt::vllm
