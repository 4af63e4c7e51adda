// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/model/sizes.h"

#include <algorithm>
#include <string>
#include <vector>

#include "ckpt/box.h"
#include "formats/megatron/model/keys.h"
#include "formats/megatron/model/old_names.h"
#include "formats/megatron/model/rules.h"

namespace ckpt::megatron {
namespace {

constexpr uint64_t kNotKnown = 0;

// The product, kNotKnown if a factor is, or if it is beyond 64 bits.
uint64_t times(uint64_t a, uint64_t b) {
  return checked_mul(a, b).value_or(kNotKnown);
}

struct Sizes {
  uint64_t hidden = 0, ffn = 0, rows = 0;  // rows: of the vocabulary
  uint64_t queries = 0, keys = 0;          // rows of all heads, of all groups

  explicit Sizes(const Facts& facts)
      : hidden(facts.hidden_size.value_or(kNotKnown)),
        ffn(facts.ffn_hidden_size.value_or(kNotKnown)),
        rows(facts.padded_vocab_size.value_or(kNotKnown)) {
    const uint64_t heads = facts.num_attention_heads.value_or(0);
    uint64_t each = facts.kv_channels.value_or(kNotKnown);
    if (each == kNotKnown && heads != 0 && hidden % heads == 0)
      each = hidden / heads;
    queries = times(heads, each);
    keys = times(facts.num_query_groups.value_or(kNotKnown), each);
  }
};

// Of the whole, dimension by dimension. Empty for other names.
Shape whole_of(std::string_view core, const Facts& facts) {
  const Sizes size(facts);
  const bool bias = core.ends_with(".bias");
  const auto linear = [&](uint64_t out, uint64_t in) {
    return bias ? Shape{out} : Shape{out, in};
  };
  const auto is = [&](std::string_view module) {
    return core.ends_with(std::string(module) + (bias ? ".bias" : ".weight"));
  };
  if (is("word_embeddings") || is("output_layer"))
    return linear(size.rows, size.hidden);
  if (core.ends_with("layer_norm_weight") ||
      core.ends_with("layer_norm_bias") || is("final_layernorm") ||
      is("word_embeddings.norm"))
    return {size.hidden};
  if (is("self_attention.linear_qkv")) {
    // Args without a number of groups are of the time when each head had its
    // own key; other rows than those fit in no way.
    const uint64_t keys = size.keys != kNotKnown ? size.keys : size.queries;
    const bool known = size.queries != kNotKnown;
    return linear(known ? size.queries + times(2, keys) : kNotKnown,
                  size.hidden);
  }
  if (is("self_attention.query")) return linear(size.queries, size.hidden);
  if (is("self_attention.key_value"))
    return linear(times(2, size.keys), size.hidden);
  if (is("self_attention.linear_proj"))
    return linear(size.hidden, size.queries);
  if (is("mlp.linear_fc1") && facts.gated)
    return linear(times(*facts.gated ? 2 : 1, size.ffn), size.hidden);
  if (is("mlp.linear_fc2")) return linear(size.hidden, size.ffn);
  return {};
}

// All ways in which `ranks` parts of a shape make the whole.
std::vector<TpRule> ways(const Shape& local, const Shape& whole,
                         uint64_t ranks) {
  std::vector<TpRule> found;
  if (whole.size() != local.size()) return found;
  const auto fits = [&](std::optional<size_t> cut) {
    for (size_t d = 0; d < local.size(); ++d) {
      const uint64_t all = d == cut ? times(local[d], ranks) : local[d];
      if (whole[d] != kNotKnown && whole[d] != all) return false;
    }
    return true;
  };
  if (fits(std::nullopt)) found.push_back(TpRule::replicated());
  for (uint32_t d = 0; d < local.size(); ++d)
    if (fits(d)) found.push_back(TpRule::split(d));
  return found;
}

}  // namespace

TpRule rule_by_sizes(std::string_view name, const Shape& local, uint64_t ranks,
                     const Facts& facts) {
  const std::string core = core_name(name);
  const std::vector<TpRule> found = ways(local, whole_of(core, facts), ranks);
  if (found.size() != 1) return {};
  const TpRule module = tp_rule(core, facts);
  if (module.state == TpRule::State::kUnknown) return found[0];
  const bool same = module.state == found[0].state &&
                    (module.state == TpRule::State::kReplicated ||
                     module.dim == found[0].dim);
  return same ? module : TpRule{};
}

nlohmann::json args_of_shapes(const Catalog& catalog) {
  nlohmann::json args = nlohmann::json::object();
  if (catalog.format != "megatron_legacy" ||
      (catalog.version != "0.0" && catalog.version != "1.0"))
    return args;
  uint64_t layers = 0;
  for (const Tensor& tensor : catalog.tensors) {
    if (tensor.kind != Kind::model) continue;
    const std::string core = core_name(tensor.name);
    const Key key = parse_key(core);
    if (key.layer) layers = std::max(layers, *key.layer + 1);
    if (tensor.shape.size() != 2) continue;
    if (core == "embedding.word_embeddings.weight") {
      args["padded_vocab_size"] = tensor.shape[0];
      args["hidden_size"] = tensor.shape[1];
    }
    if (core == "embedding.position_embeddings.weight")
      args["max_position_embeddings"] = tensor.shape[0];
    if (core.ends_with("mlp.linear_fc2.weight"))
      args["ffn_hidden_size"] = tensor.shape[1];
  }
  if (args.size() != 4 || layers == 0) return nlohmann::json::object();
  args["num_layers"] = layers;
  args["layernorm_epsilon"] = 1e-5;
  args["bias_gelu_fusion"] = true;
  args["add_bias_linear"] = true;
  args["untie_embeddings_and_output_weights"] = false;
  args["position_embedding_type"] = "learned_absolute";
  return args;
}

}  // namespace ckpt::megatron
