// SPDX-License-Identifier: Apache-2.0
// Applies rules to the tensors of a catalog.
#include <algorithm>
#include <unordered_map>

#include "ckpt/error.h"
#include "models/rules.h"

namespace ckpt::families {
namespace {

void check_dim(const Catalog& catalog, const Rules& rules, const Tensor& t,
               const TpRule& rule) {
  if (rule.state != TpRule::State::kSplit || rule.dim < t.shape.size()) return;
  throw unfaithful_error({catalog.path, t.name},
                         "to be split along dimension {} ({}), but it has {} "
                         "dimensions",
                         rule.dim, rules.source(), t.shape.size());
}

// Optimizer state is split like its parameter as far as its shape allows.
TpRule state_rule(const Tensor& state, const Tensor& param) {
  if (param.tp.state != TpRule::State::kSplit) return param.tp;
  const uint32_t d = param.tp.dim;
  if (state.shape.empty()) return TpRule::replicated();
  if (state.shape == param.shape) return param.tp;
  // Row and column statistics: [rows, 1] or [1, columns].
  const bool same_rank = state.shape.size() == param.shape.size();
  if (same_rank && state.shape[d] == param.shape[d]) return param.tp;
  return {};
}

}  // namespace

bool apply(Catalog& catalog, const Rules& rules) {
  if (rules.empty()) return false;
  const auto is_model = [](const Tensor& t) { return t.kind == Kind::model; };
  const bool any_split = std::ranges::any_of(
      catalog.tensors,
      [&](const Tensor& t) { return is_model(t) && rules.splits(t.name); });
  if (!rules.family().empty() && !any_split) return false;

  std::unordered_map<std::string_view, const Tensor*> params;
  for (Tensor& t : catalog.tensors) {
    if (!is_model(t)) continue;
    const TpRule rule = rules.tp(t.name);
    check_dim(catalog, rules, t, rule);
    if (rule.state != TpRule::State::kUnknown) t.tp = rule;
    t.dp_replicated = t.dp_replicated || rules.buffer(t.name);
    params.emplace(t.name, &t);
  }
  for (Tensor& t : catalog.tensors) {
    if (t.kind != Kind::optim) continue;
    const auto param = params.find(t.param);
    if (param != params.end()) t.tp = state_rule(t, *param->second);
  }
  if (catalog.family.empty()) catalog.family = rules.family();
  for (const std::string& line : rules.assumptions())
    catalog.assumptions.push_back(line);
  return true;
}

Error no_rule_error(const std::string& path, const Tensor& tensor,
                    const std::string& family, uint32_t tp) {
  const std::string why = family.empty()
                              ? "the model's family is not known"
                              : "family '" + family + "' has no rules for it";
  return unfaithful_error({path, tensor.name},
                          "{} over {} tensor-parallel ranks may be split or "
                          "replicated, and {}",
                          to_string(tensor.shape), tp, why)
      .with_hint(
          "name the family with --family, or the split dimensions with "
          "--shard-dims RULES.json");
}

}  // namespace ckpt::families
