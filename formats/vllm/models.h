// SPDX-License-Identifier: Apache-2.0
// Models whose arrangement in vLLM is known, as of vLLM 0.33.0: their family
// files say it ("vllm" in docs/families.md).
//
// There the module `experts` also holds the shared experts, the bias of the
// router's scores and, for some models, the router. MLA's modules appear again
// in a wrapper; the smaller of the two names counts.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "ckpt/catalog.h"
#include "formats/vllm/config.h"
#include "models/view.h"
#include "models/vllm_section.h"

namespace ckpt::vllm {

inline constexpr std::string_view kEmbedding = "model.embed_tokens.weight";
inline constexpr std::string_view kHead = "lm_head.weight";
inline constexpr std::string_view kHeadBias = "lm_head.bias";

// Ends the name of attention's output.
inline constexpr std::string_view kOutput = ".self_attn.o_proj.weight";
// What MLA's first projections become.
inline constexpr std::string_view kLatent = "fused_qkv_a_proj";

using Fusion = families::VllmSection::Fusion;
using Renaming = families::VllmSection::Renaming;
using Experts = families::VllmSection::Experts;

// What the model's family file says.
struct Model : families::VllmSection {
  std::string type;
  bool latent = false;  // attention is MLA
};

// Throws unfaithful_error for another model, for a quantized one, or if there
// is no config.json.
Model model_of(const Catalog& source, const std::optional<Config>& config);

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
