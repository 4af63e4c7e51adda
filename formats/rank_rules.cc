// SPDX-License-Identifier: Apache-2.0
#include "formats/rank_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <unordered_map>

#include "ckpt/error.h"
#include "formats/megatron/dist/target.h"
#include "formats/megatron/model/rules.h"
#include "formats/meta/layout.h"
#include "formats/meta/params.h"
#include "formats/olmo_core/shards.h"
#include "formats/vllm/config.h"
#include "lib/text/words.h"
#include "models/rules.h"

namespace ckpt::formats {
namespace {

bool lacks_rule(const Tensor& tensor) {
  return tensor.tp.state == TpRule::State::kUnknown;
}

// --- transformers' names ---

enum class HfPart : uint8_t {
  kRows,     // of the output: dimension 0, and the bias
  kColumns,  // of the input: dimension 1, and the bias is whole
  kGated,    // [gate; up]: the rows of each half
  kQueries,  // rows by whole heads …
  kKeys,     // … of which there may be fewer
  kOut,      // columns by whole heads
  kWhole,
};

struct HfRow {
  std::string_view module;
  HfPart part;
};

// What transformers' own plans (base_model_tp_plan) say for these names.
// Neither fused projections (qkv_proj, query_key_value) nor stacked experts are
// here: the former hold parts of unequal sizes, the latter are transposed in
// some models.
constexpr auto kHfRows = std::to_array<HfRow>({
    {"q_proj", HfPart::kQueries},
    {"k_proj", HfPart::kKeys},
    {"v_proj", HfPart::kKeys},
    {"o_proj", HfPart::kOut},
    {"q_b_proj", HfPart::kQueries},  // latent attention
    {"kv_b_proj", HfPart::kQueries},
    {"q_a_proj", HfPart::kWhole},
    {"kv_a_proj_with_mqa", HfPart::kWhole},
    {"gate_proj", HfPart::kRows},
    {"up_proj", HfPart::kRows},
    {"gate_up_proj", HfPart::kGated},
    {"down_proj", HfPart::kColumns},
    {"w1", HfPart::kRows},
    {"w3", HfPart::kRows},
    {"w2", HfPart::kColumns},
    {"fc1", HfPart::kRows},
    {"fc2", HfPart::kColumns},
    {"embed_tokens", HfPart::kRows},
    {"lm_head", HfPart::kRows},
    {"embed_out", HfPart::kRows},
    {"embed_positions", HfPart::kWhole},
    {"embed_in", HfPart::kRows},
    {"word_embeddings", HfPart::kRows},
    {"dense_h_to_4h", HfPart::kRows},
    {"dense_4h_to_h", HfPart::kColumns},
    {"eh_proj", HfPart::kWhole},  // in multi-token prediction layers
    {"gate", HfPart::kWhole},     // of experts
    {"router", HfPart::kWhole},
    {"shared_expert_gate", HfPart::kWhole},
    {"rotary_emb", HfPart::kWhole},
});

// "a.self_attn.q_proj.weight": module q_proj, parameter weight, in self_attn.
struct HfName {
  std::string_view full, inside, module, parameter;
};

// Names that mean other layers outside these places.
struct HfPlace {
  std::string_view begin, inside, module;
  HfPart part;
};
constexpr auto kHfPlaces = std::to_array<HfPlace>({
    {"", "self_attn", "out_proj", HfPart::kOut},      // OPT
    {"", "self_attn", "dense", HfPart::kOut},         // Phi
    {"", "router", "layer", HfPart::kWhole},          // Granite's
    {"", "shared_head", "head", HfPart::kRows},       // DeepSeek's MTP
    {"model.layers.", "mlp", "c_fc", HfPart::kRows},  // GPT-2's is transposed
    {"model.layers.", "mlp", "c_proj", HfPart::kColumns},
    // Falcon's puts all queries first; here each head has its q, k and v.
    {"gpt_neox.", "attention", "query_key_value", HfPart::kQueries},
    {"gpt_neox.", "attention", "dense", HfPart::kOut},
});

HfName hf_name(std::string_view name) {
  const auto cut = [&name] {
    const size_t dot = name.rfind('.');
    const std::string_view last = name.substr(dot == name.npos ? 0 : dot + 1);
    name = name.substr(0, dot == name.npos ? 0 : dot);
    return last;
  };
  HfName parts{.full = name, .inside = {}, .module = {}, .parameter = {}};
  parts.parameter = cut();
  parts.module = cut();
  parts.inside = cut();
  return parts;
}

std::optional<HfPart> hf_part(const HfName& name) {
  const auto row = std::ranges::find(kHfRows, name.module, &HfRow::module);
  if (row != kHfRows.end()) return row->part;
  for (const HfPlace& place : kHfPlaces)
    if (name.module == place.module && name.inside == place.inside &&
        name.full.starts_with(place.begin))
      return place.part;
  if (name.parameter == "e_score_correction_bias") return HfPart::kWhole;
  if (name.module.find("norm") != name.module.npos ||
      name.module.starts_with("ln_"))
    return HfPart::kWhole;
  return std::nullopt;
}

class HfRules {
 public:
  HfRules(const Catalog& catalog, uint32_t tp)
      : path_(catalog.path), tp_(tp), config_(vllm::config_of(catalog)) {}

  TpRule of(const Tensor& tensor) const {
    // transformers' plans keep vision and audio parts whole.
    if (is_tower(tensor.name)) return TpRule::replicated();
    const HfName name = hf_name(tensor.name);
    const size_t dims = tensor.shape.size();
    const auto part = hf_part(name);
    if (!part) return {};
    if (*part == HfPart::kWhole)
      return dims <= 2 ? TpRule::replicated() : TpRule{};
    const bool bias = name.parameter == "bias" && dims == 1;
    if (!bias && (name.parameter != "weight" || dims != 2)) return {};
    check_heads(tensor, *part);
    switch (*part) {
      case HfPart::kColumns:
      case HfPart::kOut:
        return bias ? TpRule::replicated() : TpRule::split(1);
      case HfPart::kGated:
        return TpRule::split(0, 2);
      default:
        return TpRule::split(0);
    }
  }

 private:
  // A rank has whole heads: attention can't use half a head.
  void check_heads(const Tensor& tensor, HfPart part) const {
    const bool keys = part == HfPart::kKeys;
    if (!keys && part != HfPart::kQueries && part != HfPart::kOut) return;
    const auto heads = !config_ ? std::nullopt
                       : keys   ? config_->kv_heads
                                : config_->heads;
    if (!heads)
      throw unfaithful_error({path_, tensor.name},
                             "{} ranks are to share its heads, and how many "
                             "there are is not known",
                             tp_)
          .with_hint(
              "put config.json (num_attention_heads, num_key_value_heads) "
              "beside the files, or say how it is split: --shard-dims");
    if (keys && config_->key_rows() && tensor.shape[0] != *config_->key_rows())
      throw unfaithful_error({path_, tensor.name},
                             "has {} rows, by config.json {} heads have {}: "
                             "how many heads it has is not known",
                             tensor.shape[0], *heads, *config_->key_rows())
          .with_hint("say how it is split: --shard-dims");
    if (*heads % tp_ != 0)
      throw unfaithful_error({path_, tensor.name},
                             "{} ranks can't share {} {} heads: each holds "
                             "whole heads",
                             tp_, *heads, keys ? "key/value" : "query")
          .with_hint(fmt::format("tp has to divide {}", *heads));
  }

  const std::string path_;
  const uint32_t tp_;
  std::optional<vllm::Config> config_;
};

// --- Meta's names ---

TpRule meta_rule(const Catalog& catalog, const Tensor& tensor, uint32_t tp,
                 const std::optional<meta::Params>& params) {
  if (meta::role_of(tensor.name) == meta::Role::kUnknown) return {};
  const formats::Cut cut = meta::wanted_cut(catalog, tensor, tp, 1, params);
  if (cut.whole()) return TpRule::replicated();
  if (cut.segments[0].repeat != 1)
    throw unfaithful_error({catalog.path, tensor.name},
                           "{} ranks share fewer key/value heads: some ranks "
                           "hold the same, and shards hold each row once",
                           tp)
        .with_hint("give a smaller tp");
  return TpRule::split(cut.dim);
}

// --- Megatron's names ---

void check_groups(const Catalog& catalog, const megatron::Facts& facts,
                  uint32_t tp) {
  for (const auto& [count, what] :
       {std::pair{facts.num_attention_heads, "heads"},
        std::pair{facts.num_query_groups, "query groups"}})
    if (count && *count % tp != 0)
      throw unfaithful_error({catalog.path, {}},
                             "{} ranks can't share {} {}: each holds whole "
                             "ones",
                             tp, *count, what)
          .with_hint(fmt::format("tp has to divide {}", *count));
}

// --- of any dialect ---

void follow_params(Catalog& catalog) {
  std::unordered_map<std::string_view, const Tensor*> params;
  for (const Tensor& tensor : catalog.tensors)
    if (tensor.kind == Kind::model) params.emplace(tensor.name, &tensor);
  for (Tensor& tensor : catalog.tensors) {
    if (!lacks_rule(tensor)) continue;
    const auto param = params.find(tensor.param);
    if (tensor.shape.empty())
      tensor.tp = TpRule::replicated();
    else if (tensor.kind == Kind::optim && param != params.end() &&
             param->second->shape == tensor.shape)
      tensor.tp = param->second->tp;
  }
}

template <class Rule>
void set_model_rules(Catalog& catalog, const Rule& rule_of) {
  for (Tensor& tensor : catalog.tensors)
    if (tensor.kind == Kind::model && lacks_rule(tensor))
      tensor.tp = rule_of(tensor);
}

}  // namespace

bool is_tower(std::string_view name) {
  constexpr std::string_view kParts =
      "vision_tower vision_model vision_encoder visual vision_projection "
      "vision_embedder image_encoder audio_tower audio_model audio_encoder "
      "speech_encoder qformer resampler vpm apm multi_modal_projector "
      "multimodal_projector";
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    if (text::has_word(kParts, name.substr(begin, end - begin))) return true;
    begin = end + 1;
  }
  return false;
}

bool lacks_rank_rules(const Catalog& catalog) {
  return std::ranges::any_of(catalog.tensors, lacks_rule);
}

void add_rank_rules(Catalog& catalog, std::string_view dialect, uint32_t tp) {
  if (dialect == "hf") {
    const HfRules rules(catalog, tp);
    set_model_rules(catalog,
                    [&](const Tensor& tensor) { return rules.of(tensor); });
  } else if (dialect == "mcore") {
    const megatron::Facts facts = megatron::facts_with_shapes(catalog);
    check_groups(catalog, facts, tp);
    set_model_rules(catalog, [&](const Tensor& tensor) {
      return megatron::tp_rule(tensor.name, facts);
    });
  } else if (dialect == "meta") {
    const auto params = meta::params_of(catalog);
    set_model_rules(catalog, [&](const Tensor& tensor) {
      return meta_rule(catalog, tensor, tp, params);
    });
  } else if (dialect == "fairseq2" &&
             families::Rules::is_family(catalog.family)) {
    const auto rules = families::Rules::for_family(catalog.family, {},
                                                   "the checkpoint's family");
    set_model_rules(
        catalog, [&](const Tensor& tensor) { return rules.tp(tensor.name); });
  } else if (dialect == "olmo_core") {
    olmo_core::set_rules(catalog);
  }
  follow_params(catalog);
}

}  // namespace ckpt::formats
