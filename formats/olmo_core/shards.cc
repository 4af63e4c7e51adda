// SPDX-License-Identifier: Apache-2.0
#include "formats/olmo_core/shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>

#include "ckpt/error.h"

namespace ckpt::olmo_core {
namespace {

// The rank count of the largest machines, with room to spare.
constexpr uint64_t kMostRanks = 1 << 20;

// "blocks.0.attention.w_q.weight" ends with "attention.w_q.weight", as does the
// latter itself; "my_attention.w_q.weight" does not.
bool ends_with_words(std::string_view name, std::string_view words) {
  if (!name.ends_with(words)) return false;
  return name.size() == words.size() ||
         name[name.size() - words.size() - 1] == '.';
}

constexpr std::string_view kColumns[] = {"attention.w_out.weight",
                                         "feed_forward.w2.weight"};
constexpr std::string_view kRows[] = {
    "embeddings.weight", "attention.w_q.weight", "attention.w_k.weight",
    "attention.w_v.weight", "attention.w_q.bias", "attention.w_k.bias",
    "attention.w_v.bias", "feed_forward.w1.weight", "feed_forward.w3.weight",
    "feed_forward.w1.bias", "feed_forward.w3.bias", "lm_head.w_out.weight",
    "lm_head.w_out.bias",
    // whole experts, one below another
    "feed_forward_moe.experts.mlp.w1", "feed_forward_moe.experts.mlp.w2",
    "feed_forward_moe.experts.mlp.w3"};
constexpr std::string_view kWhole[] = {"attention.w_out.bias",
                                       "feed_forward.w2.bias",
                                       "feed_forward_moe.router.weight"};

bool is_norm(std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == name.npos) return false;
  const std::string_view word = name.substr(dot + 1);
  return (word == "weight" || word == "bias") &&
         name.substr(0, dot).ends_with("norm");
}

}  // namespace

TpRule rule_of(std::string_view param) {
  const auto any = [&](const auto& list) {
    return std::ranges::any_of(list, [&](std::string_view words) {
      return ends_with_words(param, words);
    });
  };
  if (any(kColumns)) return TpRule::split(1);
  // Just w_out.weight: before 1.7 the head was not its own module.
  if (any(kRows) || param == "w_out.weight") return TpRule::split(0);
  if (any(kWhole) || is_norm(param)) return TpRule::replicated();
  return {};
}

void set_rules(Catalog& catalog) {
  std::unordered_map<std::string_view, const Tensor*> params;
  for (Tensor& tensor : catalog.tensors) {
    if (tensor.kind != Kind::model) continue;
    params.emplace(tensor.name, &tensor);
    if (tensor.tp.state != TpRule::State::kUnknown) continue;
    const TpRule rule = rule_of(tensor.name);
    if (rule.state != TpRule::State::kSplit || rule.dim < tensor.shape.size())
      tensor.tp = rule;
  }
  for (Tensor& tensor : catalog.tensors) {
    if (tensor.kind == Kind::model ||
        tensor.tp.state != TpRule::State::kUnknown)
      continue;
    const auto param = params.find(tensor.param);
    if (tensor.shape.empty())
      tensor.tp = TpRule::replicated();
    else if (param != params.end() && param->second->shape == tensor.shape)
      tensor.tp = param->second->tp;
    else if (tensor.kind == Kind::optim && param == params.end() &&
             !tensor.param.empty())
      tensor.tp = rule_of(tensor.param);  // the weights are left out
  }
}

uint32_t ranks_of(const Topology& topology) {
  for (const auto& [size, what] :
       {std::pair(topology.pp, "pp"), std::pair(topology.ep, "ep")})
    if (size != 1)
      throw unfaithful_error({},
                             "OLMo-core's files are those of dp x tp ranks, "
                             "asked for {}={}",
                             what, size)
          .with_hint(fmt::format(
              "leave --{} away: OLMo-core loads what any ranks wrote", what));
  const uint64_t ranks = uint64_t{topology.dp} * topology.tp;
  if (ranks > kMostRanks)
    throw unfaithful_error({}, "{} files, at most {}", ranks, kMostRanks);
  return static_cast<uint32_t>(ranks);
}

Topology topology_of(const Catalog& catalog, uint32_t ranks) {
  Topology topology;
  topology.dp = ranks;
  uint64_t tp = 0;
  for (const Tensor& tensor : catalog.tensors) {
    if (tensor.kind != Kind::model || tensor.shape.size() != 2 ||
        tensor.tp != TpRule::split(1))
      continue;
    std::set<uint64_t> begins;
    for (const Piece& piece : tensor.pieces)
      if (volume(piece.box) != 0) begins.insert(piece.box.offset[1]);
    if (begins.empty()) continue;
    if (tp != 0 && tp != begins.size()) return topology;  // not clear
    tp = begins.size();
  }
  if (tp < 2 || ranks % tp != 0) return topology;
  topology.tp = static_cast<uint32_t>(tp);
  topology.dp = ranks / topology.tp;
  return topology;
}

}  // namespace ckpt::olmo_core
