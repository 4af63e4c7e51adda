// SPDX-License-Identifier: Apache-2.0
#include "formats/vllm/models.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "ckpt/error.h"

namespace ckpt::vllm {
namespace {

constexpr std::array<std::string_view, 3> kQkv = {"q_proj", "k_proj", "v_proj"};
constexpr std::array<std::string_view, 2> kGateUp = {"gate_proj", "up_proj"};
constexpr std::array<std::string_view, 2> kLatent = {"q_a_proj",
                                                     "kv_a_proj_with_mqa"};
constexpr std::array<Fusion, 2> kBoth = {
    {{"qkv_proj", kQkv}, {"gate_up_proj", kGateUp}}};
// For models whose gate and up are one tensor in transformers, or that have no
// gate.
constexpr std::array<Fusion, 1> kOnlyQkv = {{{"qkv_proj", kQkv}}};
constexpr std::array<Fusion, 2> kLatentBoth = {
    {{"fused_qkv_a_proj", kLatent}, {"gate_up_proj", kGateUp}}};

constexpr Experts kGateUpDown = {"gate_proj", "up_proj", "down_proj"};
constexpr Experts kW123 = {"w1", "w3", "w2"};

// As of vLLM 0.33.0. There the module `experts` also holds the shared experts,
// the bias of the router's scores and, for some models, the router.
constexpr auto kQwen2Moe = std::to_array<Renaming>(
    {{"mlp.shared_expert_gate.",
      "mlp.experts._shared_experts._layer.expert_gate."},
     {"mlp.shared_expert.", "mlp.experts._shared_experts._layer."}});
constexpr auto kQwen3Moe =
    std::to_array<Renaming>({{"mlp.gate.weight", "mlp.experts.gate.weight"}});
constexpr auto kGlm4Moe = std::to_array<Renaming>(
    {{"mlp.gate.e_score_correction_bias",
      "mlp.experts.routed_experts.e_score_correction_bias"},
     {"mlp.shared_experts.", "mlp.experts._shared_experts._layer."}});
// MLA's modules appear again in a wrapper; the smaller of the two names counts.
constexpr auto kDeepseek = std::to_array<Renaming>(
    {{"mlp.gate.weight", "mlp.experts.gate.weight"},
     {"mlp.gate.e_score_correction_bias",
      "mlp.experts.gate.e_score_correction_bias"},
     {"mlp.shared_experts.", "mlp.experts._shared_experts._layer."},
     {"self_attn.o_proj.", "self_attn.mla_attn.o_proj."},
     {"self_attn.q_a_layernorm.", "self_attn.mla_attn.q_a_layernorm."},
     {"self_attn.q_b_proj.", "self_attn.mla_attn.q_b_proj."},
     {"self_attn.q_proj.", "self_attn.mla_attn.q_proj."}});

// Experts that are one tensor in transformers, too. gpt-oss's attention is
// `attn`; its w13 keeps rows of gate and up alternating.
constexpr auto kGptOss = std::to_array<Renaming>(
    {{"embed_tokens.weight", "embedding.weight"},
     {"mlp.experts.gate_up_proj", "mlp.experts.routed_experts.w13_weight",
      Renaming::kTurned},
     {"mlp.experts.down_proj", "mlp.experts.routed_experts.w2_weight",
      Renaming::kTurned},
     {"mlp.experts.gate_up_proj_bias", "mlp.experts.routed_experts.w13_bias"},
     {"mlp.experts.down_proj_bias", "mlp.experts.routed_experts.w2_bias"},
     {"self_attn.", "attn."}});
constexpr auto kGraniteMoe = std::to_array<Renaming>(
    {{"block_sparse_moe.input_linear.weight",
      "block_sparse_moe.experts.routed_experts.w13_weight"},
     {"block_sparse_moe.output_linear.weight",
      "block_sparse_moe.experts.routed_experts.w2_weight"},
     {"block_sparse_moe.router.layer.weight", "block_sparse_moe.gate.weight"}});
constexpr auto kLlama4 = std::to_array<Renaming>(
    {{"feed_forward.experts.gate_up_proj",
      "feed_forward.experts.routed_experts.w13_weight", Renaming::kTurned},
     {"feed_forward.experts.down_proj",
      "feed_forward.experts.routed_experts.w2_weight", Renaming::kTurned},
     {"feed_forward.shared_expert.",
      "feed_forward.experts._shared_experts._layer."}});
constexpr auto kErnie4_5Moe = std::to_array<Renaming>(
    {{"mlp.moe_statics.e_score_correction_bias",
      "mlp.experts.routed_experts.e_score_correction_bias", Renaming::kRow},
     {"mlp.shared_experts.", "mlp.experts._shared_experts._layer."}});
constexpr auto kMinimaxM2 =
    std::to_array<Renaming>({{"block_sparse_moe.e_score_correction_bias",
                              "block_sparse_moe.e_score_correction_bias"}});

constexpr auto kModels = std::to_array<Model>({
    {"llama", true, false, kBoth},
    {"mistral", true, false, kBoth},
    {"qwen2", true, false, kBoth},
    {"qwen3", true, false, kBoth},
    {"granite", true, false, kBoth},
    {"exaone4", true, false, kBoth},
    {"stablelm", true, false, kBoth},
    {"phi3", true, false, {}},
    {"glm4", true, false, kOnlyQkv},
    {"nemotron", true, false, kOnlyQkv},
    {"gemma", false, true, kBoth},
    {"gemma2", false, true, kBoth},
    {"gemma3_text", false, true, kBoth},
    {"cohere", false, true, kBoth},
    {"cohere2", false, true, kBoth},
    {"mixtral", true, false, kBoth, {}, &kW123},
    {"phimoe", true, false, kBoth, {}, &kW123, false, "lm_head.bias"},
    {"olmoe", true, false, kBoth, {}, &kGateUpDown},
    {"qwen2_moe", true, false, kBoth, kQwen2Moe, &kGateUpDown},
    {"qwen3_moe", true, false, kBoth, kQwen3Moe, &kGateUpDown},
    {"glm4_moe", true, false, kBoth, kGlm4Moe, &kGateUpDown},
    {"deepseek_v2", true, false, kLatentBoth, kDeepseek, &kGateUpDown, true},
    {"deepseek_v3", true, false, kLatentBoth, kDeepseek, &kGateUpDown, true},
    {"kimi_k2", true, false, kLatentBoth, kDeepseek, &kGateUpDown, true},
    {"gpt_oss", true, false, kOnlyQkv, kGptOss},
    {"granitemoe", true, false, kOnlyQkv, kGraniteMoe},
    {"granitemoeshared", true, false, kOnlyQkv, kGraniteMoe},
    {"llama4_text", true, false, kBoth, kLlama4, nullptr, false, {}, true},
    {"minimax_m2", true, false, kBoth, kMinimaxM2, &kW123},
    {"ernie4_5", true, true, kBoth},
    {"ernie4_5_moe", true, true, kBoth, kErnie4_5Moe, &kGateUpDown},
    {"ministral3", true, false, kBoth},
});

// The other name, if one of them is in it; names begin at a dot.
std::string renamed(const Model& model, std::string name, bool back) {
  for (const Renaming& renaming : model.renamings) {
    const std::string_view from = back ? renaming.vllm : renaming.hf;
    const std::string_view to = back ? renaming.hf : renaming.vllm;
    const size_t at = name.find("." + std::string(from));
    if (at == name.npos) continue;
    if (!from.ends_with('.') && at + 1 + from.size() != name.size()) continue;
    return name.replace(at + 1, from.size(), to);
  }
  return name;
}

}  // namespace

const Model& model_of(const Catalog& source,
                      const std::optional<Config>& config) {
  if (!config)
    throw unfaithful_error({source.path, {}},
                           "there is no config.json, and what vLLM fuses "
                           "depends on the model")
        .with_hint("put the model's config.json beside its files");
  if (config->quantized && !config->blocks)
    throw unfaithful_error({source.path, {}},
                           "config.json has a quantization_config that is not "
                           "fp8 in blocks: how vLLM holds such weights depends "
                           "on the kernels that a GPU has")
        .with_hint("--dtype bf16 makes numbers of them on the way");
  for (const Model& model : kModels)
    if (model.type == config->model_type) return model;
  std::string known;
  for (const Model& model : kModels)
    known += (known.empty() ? "" : ", ") + std::string(model.type);
  throw unfaithful_error({source.path, {}},
                         "how vLLM arranges a model of type \"{}\" is not "
                         "known",
                         config->model_type)
      .with_hint("known are " + known);
}

families::View turn_heads(const families::View& view, const Config& config,
                          const std::string& name, bool keys, bool halves) {
  const uint64_t heads = (keys ? config.kv_heads : config.heads).value_or(0);
  const Shape shape = view.shape();
  if (shape.empty() || heads == 0 || shape[0] % (2 * heads) != 0)
    throw unfaithful_error({{}, name},
                           "{} does not divide into pairs of rows of each of "
                           "config.json's {} heads",
                           to_string(shape), heads);
  const uint64_t half = shape[0] / heads / 2;
  Shape pairs = {heads, halves ? half : 2, halves ? 2 : half};
  std::vector<uint32_t> axes = {0, 2, 1};
  for (size_t i = 1; i < shape.size(); ++i) {
    pairs.push_back(shape[i]);
    axes.push_back(static_cast<uint32_t>(i + 2));
  }
  return view.reshape(pairs).permute(axes).reshape(shape);
}

Renaming::How arrangement(const Model& model, std::string_view name) {
  for (const Renaming& renaming : model.renamings)
    if (name.ends_with(renaming.hf)) return renaming.how;
  return Renaming::kSame;
}

std::string vllm_name(const Model& model, std::string name) {
  return renamed(model, std::move(name), false);
}

std::string hf_name(const Model& model, std::string name) {
  return renamed(model, std::move(name), true);
}

}  // namespace ckpt::vllm
