// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/model/ranks.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "ckpt/error.h"
#include "lib/text/format.h"

namespace ckpt::megatron {
namespace {

constexpr uint64_t kMostRanks = uint64_t{1} << 20;

// The "decoder.layers" of decoder.layers.3.mlp…, with what precedes it.
std::string_view stack_of(const Key& key) {
  const size_t at = key.model.find("layers.", key.prefix.size());
  return at == key.model.npos ? std::string_view{}
                              : key.model.substr(0, at + 6);
}

}  // namespace

Stages::Stages(const Catalog& catalog, const KeyList& keys, const Facts& facts,
               uint32_t pp, const std::vector<uint64_t>& wanted)
    : pp_(pp) {
  for (const uint64_t layers : wanted)
    ends_.push_back(layers + (ends_.empty() ? 0 : ends_.back()));
  for (size_t i = 0; i < keys.size(); ++i) {
    const Tensor& tensor = catalog.tensors[i];
    const Key& key = keys[i];
    if (!key.rooted || place_of(key) != Where::kLayer) continue;
    uint64_t count = key.layer ? *key.layer + 1 : 0;
    if (key.layer_axis && !tensor.shape.empty()) count = tensor.shape[0];
    const std::string_view stack = stack_of(key);
    const auto found = layers_.find(stack);
    if (found == layers_.end())
      layers_.emplace(stack, count);
    else
      found->second = std::max(found->second, count);
  }
  // Hybrid models give a number to what others call half a layer.
  for (auto& [stack, count] : layers_) {
    if (facts.num_layers && stack.ends_with("decoder.layers") &&
        *facts.num_layers > count)
      count = *facts.num_layers;
    if (count < pp_)
      throw unfaithful_error({catalog.path, {}},
                             "{} layers of {} can't be spread over {} pipeline "
                             "stages",
                             count, stack, pp_)
          .with_hint(fmt::format("--pp {} is the most", count));
    if (!ends_.empty() && (ends_.back() != count || ends_.size() != pp_))
      throw unfaithful_error({catalog.path, {}},
                             "--pp-layout {} has {} layers on {} stages; "
                             "there are {} layers of {}, and pp={}",
                             fmt::join(wanted, ","), ends_.back(), ends_.size(),
                             count, stack, pp_)
          .with_hint("a number for each pipeline stage: 9,8,8,7");
    if (count % pp_ != 0 && ends_.empty())
      uneven_ = fmt::format("{} layers of {} over {} pipeline stages", count,
                            stack, pp_);
  }
}

uint32_t Stages::of(const Key& key, uint64_t layer) const {
  switch (place_of(key)) {
    case Where::kLast:
      return pp_ - 1;
    case Where::kLayer: {
      const auto found = layers_.find(stack_of(key));
      if (found == layers_.end() || layer >= found->second) return 0;
      if (!ends_.empty())
        return static_cast<uint32_t>(std::ranges::upper_bound(ends_, layer) -
                                     ends_.begin());
      return static_cast<uint32_t>(layer * pp_ / found->second);
    }
    default:
      return 0;
  }
}

namespace {

uint32_t count_of(const Topology& topology) {
  const uint64_t stage = uint64_t{topology.tp} * topology.dp;
  if (stage == 0 || topology.pp == 0 || topology.ep == 0)
    throw usage_error({}, "a topology of no ranks ({})", to_string(topology));
  if (stage > kMostRanks || stage * topology.pp > kMostRanks)
    throw unfaithful_error({}, "{} makes more than {} ranks",
                           to_string(topology), kMostRanks);
  return static_cast<uint32_t>(stage * topology.pp);
}

// The least dp whose stages hold all ep x etp expert ranks, each as often.
uint64_t least_dp(const Topology& topology, uint64_t etp) {
  const uint64_t experts =
      std::max<uint64_t>(1, topology.ep) * std::max<uint64_t>(1, etp);
  return experts / std::gcd(experts, std::max<uint64_t>(1, topology.tp));
}

}  // namespace

Ranks::Ranks(const Topology& topology, uint64_t etp, bool experts)
    : topology_(topology), etp_(etp), count_(count_of(topology)) {
  const uint64_t stage = uint64_t{topology.tp} * topology.dp;
  if (topology.ep > 1 && !experts)
    throw unfaithful_error({}, "--ep {}: the model has no experts", topology.ep)
        .with_hint("leave --ep out");
  if (!experts) return;
  if (etp_ == 0 || etp_ > stage || stage % (etp_ * topology.ep) != 0)
    throw unfaithful_error(
        {}, "{} of a stage (tp={} x dp={}) can't be shared by ep={} x etp={}",
        text::counted(stage, "rank"), topology.tp, topology.dp, topology.ep,
        etp_)
        .with_hint(fmt::format(
            "expert ranks are taken from a stage's: --dp {} or a multiple, or "
            "another --ep",
            least_dp(topology, etp_)));
}

uint32_t Ranks::take(uint64_t first, uint64_t step, uint64_t size,
                     uint64_t bytes) {
  Loads& loads = groups_[{first, step}];
  if (loads.empty())
    for (uint64_t i = 0; i < size; ++i) loads.emplace(0, first + i * step);
  const Load least = loads.top();
  loads.pop();
  // Saturates: only the order matters.
  const uint64_t sum =
      checked_add(least.first, std::max<uint64_t>(1, bytes)).value_or(~0ull);
  loads.emplace(sum, least.second);
  return static_cast<uint32_t>(least.second);
}

uint32_t Ranks::dense(uint64_t tp, uint32_t pp, uint64_t bytes) {
  const uint64_t stage = uint64_t{topology_.tp} * topology_.dp;
  return take(tp + stage * pp, topology_.tp, topology_.dp, bytes);
}

uint32_t Ranks::expert(uint64_t tp, uint64_t ep, uint32_t pp, uint64_t bytes) {
  const uint64_t stage = uint64_t{topology_.tp} * topology_.dp;
  const uint64_t step = etp_ * topology_.ep;
  return take(tp + etp_ * ep + stage * pp, step, stage / step, bytes);
}

}  // namespace ckpt::megatron
