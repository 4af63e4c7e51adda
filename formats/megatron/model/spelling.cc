// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/model/spelling.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "formats/megatron/model/module_order.h"
#include "formats/megatron/model/old_names.h"

namespace ckpt::megatron {
namespace {

constexpr std::string_view kModelLayer = "mtp_model_layer.";
constexpr std::string_view kOldModelLayer = "transformer_layer.";

// A name cut after its layer: "mtp.layers.0.mtp_model_layer." and the rest.
struct InLayer {
  std::string prefix;  // "": not in a layer
  std::string rest;
};

InLayer cut_layer(const Key& key) {
  InLayer cut{layer_prefix(key), {}};
  if (cut.prefix.empty()) return {{}, std::string(key.model)};
  cut.rest = std::string(key.model.substr(cut.prefix.size()));
  cut.prefix.erase(0, key.prefix.size());
  for (const std::string_view module : {kModelLayer, kOldModelLayer})
    if (cut.prefix.starts_with("mtp.") && cut.rest.starts_with(module)) {
      cut.rest.erase(0, module.size());
      cut.prefix += kModelLayer;
      break;
    }
  return cut;
}

// Calls `use` with the key of the name that Megatron-Core's modules have.
template <class Use>
auto with_core_key(std::string_view name, const Key& key, Use use) {
  const std::string core = core_name(name);
  return core == name ? use(key) : use(parse_key(core));
}

InLayer cut_layer(std::string_view name, const Key& key) {
  return with_core_key(name, key,
                       [](const Key& core) { return cut_layer(core); });
}

// The name without what wraps the model.
std::string bare(std::string_view name, const Key& key) {
  return with_core_key(name, key, [](const Key& core) {
    return std::string(core.rooted ? core.name : core.model);
  });
}

// "7" and "linear_fc1.weight" of "…local_experts.7.linear_fc1.weight".
std::string grouped_expert(const std::string& rest) {
  constexpr std::string_view kStyles[] = {"mlp.experts.local_experts.",
                                          "mlp.experts.experts."};
  for (const std::string_view style : kStyles) {
    if (!rest.starts_with(style)) continue;
    const size_t dot = rest.find('.', style.size());
    const std::string number = rest.substr(style.size(), dot - style.size());
    const bool digits = !number.empty() &&
                        number.find_first_not_of("0123456789") == number.npos;
    if (dot == rest.npos || !digits) return rest;
    return "mlp.experts" + rest.substr(dot) + number;
  }
  return rest;
}

// Since 2026 a mixer's convolution is not its own module.
std::string dotted_conv(std::string rest) {
  replace_front(rest, "mixer.conv1d_", "mixer.conv1d.");
  replace_front(rest, "mamba_mixer.conv1d_", "mamba_mixer.conv1d.");
  return rest;
}

std::string single_expert(const std::string& rest) {
  constexpr std::string_view kGrouped = "mlp.experts.linear_fc";
  const size_t end = rest.find_last_not_of("0123456789") + 1;
  if (!rest.starts_with(kGrouped) || end == rest.size()) return rest;
  constexpr std::string_view kExperts = "mlp.experts.";
  return std::string(kExperts) + "local_experts." + rest.substr(end) + "." +
         rest.substr(kExperts.size(), end - kExperts.size());
}

// What has two names in a layer, one for each spelling.
struct Norm {
  std::string_view fused;
  std::string_view own;
};
constexpr Norm kInput{"self_attention.linear_qkv.layer_norm_",
                      "input_layernorm."};
constexpr Norm kMlp{"mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm."};
constexpr Norm kQuery{"self_attention.linear_q_up_proj.layer_norm_",
                      "self_attention.q_layernorm."};
constexpr Norm kKeyValue{"self_attention.linear_kv_up_proj.layer_norm_",
                         "self_attention.kv_layernorm."};

}  // namespace

Spelling::Spelling(const Catalog& catalog, const KeyList& keys) {
  for (size_t i = 0; i < keys.size(); ++i) {
    const Tensor& tensor = catalog.tensors[i];
    if (tensor.kind == Kind::optim) continue;
    const InLayer cut = cut_layer(tensor.name, keys[i]);
    if (cut.prefix.empty()) continue;
    Layer& layer = layers_[cut.prefix];
    const auto holds = [&](bool& flag, std::string_view module) {
      flag = flag || cut.rest.starts_with(module);
    };
    holds(layer.qkv, "self_attention.linear_qkv.weight");
    holds(layer.q_up, "self_attention.linear_q_up_proj.weight");
    holds(layer.kv_up, "self_attention.linear_kv_up_proj.weight");
    holds(layer.fc1, "mlp.linear_fc1.weight");
    holds(layer.router, "mlp.router.weight");
    holds(layer.own_norms, "post_self_attn_layernorm.weight");
    holds(indexed_, "self_attention.core_attention.indexer.");
  }
}

const Spelling::Layer& Spelling::layer(const std::string& prefix) const {
  static const Layer kNone;
  const auto found = layers_.find(prefix);
  return found == layers_.end() ? kNone : found->second;
}

std::string Spelling::canonical(std::string_view name, const Key& key) const {
  InLayer cut = cut_layer(name, key);
  if (cut.prefix.empty()) return bare(name, key);
  const Layer& parts = layer(cut.prefix);
  const auto fuse = [&](const Norm& norm) {
    replace_front(cut.rest, norm.own, norm.fused);
  };
  const auto divide = [&](const Norm& norm) {
    replace_front(cut.rest, norm.fused, norm.own);
  };
  cut.rest = dotted_conv(grouped_expert(cut.rest));
  if (parts.qkv) fuse(kInput);
  if (indexed_) {
    divide(kQuery);
    divide(kKeyValue);
  } else {
    if (parts.q_up) fuse(kQuery);
    if (parts.kv_up) fuse(kKeyValue);
  }
  if (parts.router)
    divide(kMlp);
  else if (parts.fc1 && !parts.own_norms)
    fuse(kMlp);
  return cut.prefix + cut.rest;
}

std::string Spelling::local(std::string_view name, const Key& key) const {
  InLayer cut = cut_layer(name, key);
  if (cut.prefix.empty()) return std::string(name);
  for (const Norm& norm : {kInput, kQuery, kKeyValue, kMlp})
    replace_front(cut.rest, norm.fused, norm.own);
  return cut.prefix + single_expert(cut.rest);
}

void sort_modules(Catalog& catalog, const KeyList& keys, bool local) {
  const OrderStyle style{.fused_norms = !local, .grouped_experts = !local};
  using Rank = std::tuple<int, uint64_t, bool, std::vector<uint32_t>>;
  const auto rank = [&](const Tensor& tensor, const Key& key) -> Rank {
    const Where where = place_of(key);
    if (tensor.kind != Kind::model || !key.rooted) return {3, 0, false, {}};
    const int end = where == Where::kFirst ? 0 : where == Where::kLayer ? 1 : 2;
    const auto order = order_of(key, style);
    return {end, where == Where::kLayer ? key.layer.value_or(0) : 0,
            !order.has_value(),
            order ? order->at(key.layer.value_or(0), key.expert.value_or(0))
                  : std::vector<uint32_t>()};
  };
  std::vector<std::pair<Rank, size_t>> ranks;
  for (size_t i = 0; i < catalog.tensors.size(); ++i)
    ranks.emplace_back(rank(catalog.tensors[i], keys[i]), i);
  std::ranges::sort(ranks);
  std::vector<Tensor> sorted;
  sorted.reserve(ranks.size());
  for (const auto& [place, i] : ranks)
    sorted.push_back(std::move(catalog.tensors[i]));
  catalog.tensors = std::move(sorted);
}

}  // namespace ckpt::megatron
