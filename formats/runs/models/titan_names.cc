// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/models/titan_names.h"

#include <algorithm>

#include "lib/text/number.h"

namespace ckpt::runs::titan {
namespace {

constexpr std::string_view kHfLayers = "model.layers.";
constexpr std::string_view kLayers = "layers.";
constexpr std::string_view kMtpLayers = "mtp_layers.";
constexpr std::string_view kHfExperts = "mlp.experts.";
constexpr std::string_view kExperts = "moe.routed_experts.inner_experts.";
constexpr uint64_t kMostLayers = 1 << 20;

constexpr auto kTop = std::to_array<Pair>({
    {"model.embed_tokens.weight", "tok_embeddings.weight"},
    {"model.norm.weight", "norm.weight"},
    {"lm_head.weight", "lm_head.weight"},
});
constexpr auto kNorms = std::to_array<Pair>({
    {"input_layernorm.weight", "attention_norm.weight"},
    {"post_attention_layernorm.weight", "ffn_norm.weight"},
});
constexpr auto kAttention = std::to_array<Pair>({
    {"self_attn.q_proj.weight", "attention.qkv_linear.wq.weight"},
    {"self_attn.k_proj.weight", "attention.qkv_linear.wk.weight"},
    {"self_attn.v_proj.weight", "attention.qkv_linear.wv.weight"},
    {"self_attn.o_proj.weight", "attention.wo.weight"},
});
constexpr auto kAttentionBias = std::to_array<Pair>({
    {"self_attn.q_proj.bias", "attention.qkv_linear.wq.bias"},
    {"self_attn.k_proj.bias", "attention.qkv_linear.wk.bias"},
    {"self_attn.v_proj.bias", "attention.qkv_linear.wv.bias"},
    {"self_attn.o_proj.bias", "attention.wo.bias"},
});
constexpr auto kHeadNorms = std::to_array<Pair>({
    {"self_attn.q_norm.weight", "attention.q_norm.weight"},
    {"self_attn.k_norm.weight", "attention.k_norm.weight"},
});
// Multi-head latent attention; its rotary pairs are adjacent in both.
constexpr auto kLatent = std::to_array<Pair>({
    {"self_attn.q_proj.weight", "attention.wq.weight"},
    {"self_attn.q_a_proj.weight", "attention.wq_a.weight"},
    {"self_attn.q_a_layernorm.weight", "attention.q_norm.weight"},
    {"self_attn.q_b_proj.weight", "attention.wq_b.weight"},
    {"self_attn.kv_a_proj_with_mqa.weight", "attention.wkv_a.weight"},
    {"self_attn.kv_a_layernorm.weight", "attention.kv_norm.weight"},
    {"self_attn.kv_b_proj.weight", "attention.wkv_b.weight"},
    {"self_attn.o_proj.weight", "attention.wo.weight"},
});
constexpr auto kDense = std::to_array<Pair>({
    {"mlp.gate_proj.weight", "feed_forward.w1.weight"},
    {"mlp.up_proj.weight", "feed_forward.w3.weight"},
    {"mlp.down_proj.weight", "feed_forward.w2.weight"},
});
constexpr auto kGate = std::to_array<Pair>({
    {"mlp.gate.weight", kRouter},
});
constexpr auto kShared = std::to_array<Pair>({
    {"mlp.shared_experts.gate_proj.weight", "moe.shared_experts.w1.weight"},
    {"mlp.shared_experts.up_proj.weight", "moe.shared_experts.w3.weight"},
    {"mlp.shared_experts.down_proj.weight", "moe.shared_experts.w2.weight"},
});
constexpr auto kCorrection = std::to_array<Pair>({
    {"mlp.gate.weight", kRouter},
    {"mlp.gate.e_score_correction_bias", kExpertBias},
});
constexpr auto kPredicting = std::to_array<Pair>({
    {"enorm.weight", "enorm.weight"},
    {"hnorm.weight", "hnorm.weight"},
    {"eh_proj.weight", "eh_proj.weight"},
    {"shared_head.norm.weight", "mtp_norm.weight"},
});
// transformers keeps gpt_oss' experts for x @ w, torchtitan for x @ w.T; gate
// and up alternate in both.
constexpr auto kOssExperts = std::to_array<Pair>({
    {"self_attn.sinks", "attention.sinks"},
    {"mlp.router.weight", kRouter},
    {"mlp.router.bias", "moe.router.gate.bias"},
    {"mlp.experts.gate_up_proj",
     "moe.routed_experts.inner_experts.mlp1_weight_EGD"},
    {"mlp.experts.gate_up_proj_bias",
     "moe.routed_experts.inner_experts.mlp1_bias_EG"},
    {"mlp.experts.down_proj",
     "moe.routed_experts.inner_experts.mlp2_weight_EDF"},
    {"mlp.experts.down_proj_bias",
     "moe.routed_experts.inner_experts.mlp2_bias_ED"},
});

const auto kModels = std::to_array<Model>({
    {.type = "llama", .layer = {kNorms, kAttention, kDense}, .pairs = true},
    {.type = "qwen3", .layer = {kNorms, kAttention, kHeadNorms, kDense}},
    {.type = "qwen3_moe",
     .layer = {kNorms, kAttention, kHeadNorms, kDense, kGate},
     .grouped = true},
    {.type = "deepseek_v2",
     .layer = {kNorms, kLatent, kDense, kGate, kShared},
     .grouped = true},
    {.type = "deepseek_v3",
     .layer = {kNorms, kLatent, kDense, kCorrection, kShared, kPredicting},
     .grouped = true,
     .bias = true},
    {.type = "gpt_oss",
     .layer = {kNorms, kAttention, kAttentionBias, kOssExperts}},
});

// The three of each expert, in files of transformers and in torchtitan.
constexpr auto kOfExpert = std::to_array<Pair>({
    {".gate_proj.weight", "w1_EFD"},
    {".up_proj.weight", "w3_EFD"},
    {".down_proj.weight", "w2_EDF"},
});
constexpr std::string_view kTrainedGateUp = "mlp.experts.gate_up_proj";
constexpr std::string_view kTrainedDown = "mlp.experts.down_proj";

std::optional<InLayer> in_layer(std::string_view name,
                                std::string_view layers) {
  if (!name.starts_with(layers)) return std::nullopt;
  name.remove_prefix(layers.size());
  const auto number = text::take_number(name);
  if (!number || *number >= kMostLayers || !name.starts_with('.'))
    return std::nullopt;
  return InLayer{*number, std::string(name.substr(1)), false};
}

bool has(const Model& model, std::span<const Pair> pairs) {
  return std::ranges::any_of(model.layer, [&](std::span<const Pair> one) {
    return one.data() == pairs.data();
  });
}

// How many projections of an attention's pairs are trained as one.
constexpr size_t kInFused = 3;

// The weights' pairs, and those of biases.
std::vector<std::span<const Pair>> fused_of(const Model& model) {
  std::vector<std::span<const Pair>> all;
  for (const std::span<const Pair> pairs :
       {std::span<const Pair>(kAttention),
        std::span<const Pair>(kAttentionBias)})
    if (has(model, pairs)) all.push_back(pairs.first(kInFused));
  return all;
}

std::string fused_name(std::span<const Pair> pairs) {
  return std::string(kFused) +
         (pairs.data() == kAttention.data() ? "weight" : "bias");
}

}  // namespace

const Model* find_model(std::string_view type) {
  const auto found = std::ranges::find(kModels, type, &Model::type);
  return found == kModels.end() ? nullptr : &*found;
}

std::string known_models() {
  std::string text;
  for (const Model& model : kModels)
    text += (text.empty()                ? ""
             : &model == &kModels.back() ? " and "
                                         : ", ") +
            std::string(model.type);
  return text;
}

std::optional<InLayer> in_hf_layer(std::string_view name, uint64_t layers) {
  auto at = in_layer(name, kHfLayers);
  if (!at || at->number < layers) return at;
  at->number -= layers;
  at->mtp = true;
  return at;
}

std::optional<InLayer> in_titan_layer(std::string_view name) {
  if (auto at = in_layer(name, kLayers)) return at;
  auto at = in_layer(name, kMtpLayers);
  if (at) at->mtp = true;
  return at;
}

std::string in_hf(const InLayer& at, std::string_view rest, uint64_t layers) {
  return std::string(kHfLayers) +
         std::to_string(at.number + (at.mtp ? layers : 0)) + "." +
         std::string(rest);
}

std::string in_titan(const InLayer& at, std::string_view rest) {
  return std::string(at.mtp ? kMtpLayers : kLayers) +
         std::to_string(at.number) + "." + std::string(rest);
}

namespace {

// Calls use(pair) for the pairs of a layer, until it returns true.
template <typename Use>
void each_pair(const Model& model, bool mtp, Use use) {
  const bool predicts = has(model, kPredicting);
  if (mtp && !predicts) return;
  for (const std::span<const Pair> pairs : model.layer) {
    if (!mtp && pairs.data() == kPredicting.data()) continue;
    for (const Pair& pair : pairs)
      if (use(pair)) return;
  }
}

}  // namespace

std::string titan_name(const Model& model, const std::string& hf,
                       uint64_t layers) {
  for (const Pair& pair : kTop)
    if (hf == pair.hf) return std::string(pair.titan);
  const auto at = in_hf_layer(hf, layers);
  std::string name;
  if (!at) return name;
  if (model.grouped && at->rest == kTrainedDown && !at->mtp)
    return in_titan(*at,
                    std::string(kExperts) + std::string(kOfExpert[2].titan));
  each_pair(model, at->mtp, [&](const Pair& pair) {
    if (at->rest == pair.hf) name = in_titan(*at, pair.titan);
    return !name.empty();
  });
  return name;
}

std::string hf_name(const Model& model, const std::string& titan,
                    uint64_t layers) {
  for (const Pair& pair : kTop)
    if (titan == pair.titan) return std::string(pair.hf);
  const auto at = in_titan_layer(titan);
  std::string name;
  if (!at) return name;
  each_pair(model, at->mtp, [&](const Pair& pair) {
    if (at->rest == pair.titan) name = in_hf(*at, pair.hf, layers);
    return !name.empty();
  });
  return name;
}

std::optional<Part> part_of_fused(const Model& model, const std::string& hf,
                                  uint64_t layers) {
  const auto at = in_hf_layer(hf, layers);
  if (!at) return std::nullopt;
  for (const std::span<const Pair> pairs : fused_of(model))
    for (size_t i = 0; i < pairs.size(); ++i)
      if (at->rest == pairs[i].hf)
        return Part{i, in_titan(*at, fused_name(pairs))};
  return std::nullopt;
}

std::vector<std::string> parts_of_fused(const Model& model,
                                        const std::string& titan,
                                        uint64_t layers) {
  std::vector<std::string> parts;
  const auto at = in_titan_layer(titan);
  if (!at) return parts;
  for (const std::span<const Pair> pairs : fused_of(model))
    if (at->rest == fused_name(pairs))
      for (const Pair& pair : pairs)
        parts.push_back(in_hf(*at, pair.hf, layers));
  return parts;
}

std::optional<Part> part_of_experts(const Model& model, const std::string& hf,
                                    uint64_t layers) {
  const auto at = in_hf_layer(hf, layers);
  if (!model.grouped || !at || !at->rest.starts_with(kHfExperts))
    return std::nullopt;
  std::string_view rest = at->rest;
  rest.remove_prefix(kHfExperts.size());
  const auto number = text::take_number(rest);
  for (const Pair& pair : kOfExpert)
    if (number && rest == pair.hf)
      return Part{*number, in_titan(*at, std::string(kExperts) +
                                             std::string(pair.titan))};
  return std::nullopt;
}

std::optional<Each> each_expert(const Model& model, const std::string& titan,
                                uint64_t layers) {
  const auto at = in_titan_layer(titan);
  if (!model.grouped || !at || !at->rest.starts_with(kExperts))
    return std::nullopt;
  for (const Pair& pair : kOfExpert)
    if (std::string_view(at->rest).substr(kExperts.size()) == pair.titan)
      return Each{in_hf(*at, kHfExperts, layers), std::string(pair.hf)};
  return std::nullopt;
}

std::vector<std::string> parts_of_trained(const Model& model,
                                          const std::string& hf,
                                          uint64_t layers) {
  std::vector<std::string> parts;
  const auto at = in_hf_layer(hf, layers);
  if (model.grouped && at && at->rest == kTrainedGateUp)
    for (size_t i = 0; i < 2; ++i)
      parts.push_back(in_titan(
          *at, std::string(kExperts) + std::string(kOfExpert[i].titan)));
  return parts;
}

std::optional<Part> part_of_trained(const Model& model,
                                    const std::string& titan, uint64_t layers) {
  const auto at = in_titan_layer(titan);
  if (!model.grouped || !at || !at->rest.starts_with(kExperts))
    return std::nullopt;
  for (size_t i = 0; i < kOfExpert.size(); ++i)
    if (std::string_view(at->rest).substr(kExperts.size()) ==
        kOfExpert[i].titan)
      return Part{i,
                  in_hf(*at, i == 2 ? kTrainedDown : kTrainedGateUp, layers)};
  return std::nullopt;
}

std::vector<std::string> others(const std::string& parameter) {
  std::vector<std::string> all;
  const auto add = [&](std::string name) {
    if (!name.empty() && std::ranges::find(all, name) == all.end())
      all.push_back(std::move(name));
  };
  for (const Model& model : kModels) {
    for (std::string& part : parts_of_fused(model, parameter, kMostLayers))
      add(std::move(part));
    for (std::string& part : parts_of_trained(model, parameter, kMostLayers))
      add(std::move(part));
    if (auto part = part_of_fused(model, parameter, kMostLayers))
      add(std::move(part->whole));
    if (auto part = part_of_experts(model, parameter, kMostLayers))
      add(std::move(part->whole));
    if (auto part = part_of_trained(model, parameter, kMostLayers))
      add(std::move(part->whole));
    add(titan_name(model, parameter, kMostLayers));
    add(hf_name(model, parameter, kMostLayers));
  }
  return all;
}

}  // namespace ckpt::runs::titan
