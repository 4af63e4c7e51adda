// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/legacy/groups.h"

#include <algorithm>

#include "formats/megatron/legacy/names.h"

namespace ckpt::megatron {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;

bool flag(const Document& document, Id group, const char* key) {
  const Id id = document.find(group, key);
  return document.is(id, Type::kBool) && document.boolean(id);
}

bool is_qk_norm(std::string_view name) {
  return name.ends_with("q_layernorm.weight") ||
         name.ends_with("k_layernorm.weight");
}

GroupTraits traits_of(const LegacyParam& param, const GroupRules& rules) {
  GroupTraits traits;
  traits.no_decay = spares_decay(param.name, param.shape.size()) &&
                    !(rules.decay_qk_norms && is_qk_norm(param.name));
  const auto any = [&](bool GroupTraits::*member) {
    return std::ranges::any_of(rules.groups,
                               [&](const GroupTraits& g) { return g.*member; });
  };
  traits.expert = param.expert && any(&GroupTraits::expert);
  traits.decoupled = any(&GroupTraits::decoupled) &&
                     (is_vocabulary(param.name) ||
                      param.name.find("embeddings.") != std::string::npos ||
                      embedding_of_copy(param.name).has_value());
  return traits;
}

}  // namespace

std::optional<std::vector<std::vector<LegacyParam>>> split_optimizers(
    std::span<const LegacyParam> params, size_t count, size_t chunks) {
  const bool experts = std::ranges::any_of(params, &LegacyParam::expert);
  const bool by_chunk = count >= 2 && !(count == 2 && experts) &&
                        (count == chunks || count == chunks + 1);
  if (count == 0 || (count > 2 && !by_chunk)) return std::nullopt;
  const bool own = count == (by_chunk ? chunks + 1 : 2);  // for experts
  std::vector<std::vector<LegacyParam>> all(count);
  for (const LegacyParam& param : params) {
    size_t to = by_chunk ? param.chunk : 0;
    if (own && param.expert) to = count - 1;
    all[to].push_back(param);
  }
  return all;
}

GroupRules read_groups(const Document& document, Id groups) {
  GroupRules rules;
  if (!document.is(groups, Type::kList)) return rules;
  for (const Id group : document.items(groups)) {
    const auto mult = document.as_real(document.find(group, "wd_mult"));
    const auto decay = document.as_real(document.find(group, "weight_decay"));
    GroupTraits traits;
    // Before wd_mult, the group without weight decay was the second one.
    traits.no_decay =
        mult ? *mult == 0 : (decay && *decay == 0) || !rules.groups.empty();
    traits.expert = flag(document, group, "is_expert_parallel");
    traits.decoupled = flag(document, group, "is_decoupled_lr");
    rules.groups.push_back(traits);
  }
  // Experts' own optimizer: all its groups say so.
  if (std::ranges::all_of(rules.groups, &GroupTraits::expert))
    for (GroupTraits& traits : rules.groups) traits.expert = false;
  return rules;
}

std::vector<std::vector<LegacyParam>> split_groups(
    std::span<const LegacyParam> params, const GroupRules& rules) {
  std::vector<std::vector<LegacyParam>> all(rules.groups.size());
  for (const LegacyParam& param : params) {
    const auto at = std::ranges::find(rules.groups, traits_of(param, rules));
    if (at != rules.groups.end())
      all[static_cast<size_t>(at - rules.groups.begin())].push_back(param);
  }
  return all;
}

std::vector<LegacyBuffer> split_buffers(std::span<const LegacyParam> params) {
  std::vector<LegacyBuffer> all;
  for (const LegacyParam& param : params) {
    auto at = std::ranges::find_if(all, [&](const LegacyBuffer& buffer) {
      return buffer.chunk == param.chunk && buffer.dtype == param.dtype;
    });
    if (at == all.end()) at = all.insert(at, {param.chunk, param.dtype, {}});
    at->params.push_back(param);
  }
  // By chunk; within one, dtypes in order of appearance.
  std::ranges::stable_sort(all, {}, &LegacyBuffer::chunk);
  return all;
}

BufferRules buffer_rules(const Facts& facts, uint32_t pp, uint32_t chunk,
                         uint64_t numel, uint64_t dp) {
  constexpr uint64_t kLeast = 40'000'000;
  constexpr uint64_t kEach = 1'000'000;
  BufferRules rules;
  rules.divisor =
      std::max<uint64_t>(1, bucket_divisor(std::max<uint64_t>(1, dp)));
  if (!facts.overlap_grad_reduce.value_or(false) || pp != 0 || chunk != 0)
    return rules;
  if (facts.bucket_size)
    rules.bucket_size = *facts.bucket_size;
  else if (facts.num_buckets)
    rules.bucket_size = numel / *facts.num_buckets;
  else
    rules.bucket_size =
        std::max(kLeast, checked_mul(kEach, dp).value_or(UINT64_MAX));
  return rules;
}

std::vector<BufferParam> buffer_params(const LegacyBuffer& buffer) {
  std::vector<BufferParam> params;
  for (const LegacyParam& param : buffer.params)
    params.push_back({param.numel, param.shared});
  return params;
}

}  // namespace ckpt::megatron
