// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/legacy/check.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <unordered_set>

#include "ckpt/error.h"
#include "formats/megatron/legacy/names.h"
#include "formats/megatron/model/parts.h"
#include "formats/megatron/model/rules.h"
#include "lib/text/format.h"

namespace ckpt::megatron {
namespace {

using text::printable;
using State = TpRule::State;

bool divides(const Shape& shape, const TpRule& rule, uint64_t ranks) {
  return rule.state != State::kSplit || ranks == 1 ||
         (rule.dim < shape.size() && shape[rule.dim] % rule.groups == 0 &&
          shape[rule.dim] / rule.groups % ranks == 0);
}

class Checker {
 public:
  Checker(const Catalog& source, const Facts& facts, const LegacyPlan& plan,
          Target& target)
      : source_(source), facts_(facts), plan_(plan), target_(target) {}

  void check_tensors();
  void check_states() const;

 private:
  void check_split(Tensor& tensor) const;
  void check_parts(const Tensor& tensor, uint64_t ranks) const;
  bool shares_heads(uint64_t tp) const;
  bool shares_groups(uint64_t tp) const;
  std::optional<std::string> unshared_mixers(uint64_t tp) const;
  std::string possible_sizes(const Tensor* refused) const;

  const Catalog& source_;
  const Facts& facts_;
  const LegacyPlan& plan_;
  Target& target_;
};

// Megatron gives each rank whole heads.
bool Checker::shares_heads(uint64_t tp) const {
  return facts_.num_attention_heads.value_or(tp) % tp == 0;
}

bool Checker::shares_groups(uint64_t tp) const {
  const uint64_t groups = facts_.num_query_groups.value_or(tp);
  return groups % tp == 0 || tp % groups == 0;
}

std::optional<std::string> Checker::unshared_mixers(uint64_t tp) const {
  return unshared(target_.catalog.tensors,
                  {facts_.mamba_groups, facts_.delta_keys}, tp);
}

// `refused` may be null, or an unpadded vocabulary.
std::string Checker::possible_sizes(const Tensor* refused) const {
  std::vector<uint64_t> sizes;
  for (uint64_t tp = 1; tp <= 1024 && sizes.size() < 12; ++tp) {
    const auto fits = [&](const Tensor& tensor) {
      return tensor.kind != Kind::model || is_vocabulary(tensor.name) ||
             divides(tensor.shape, tensor.tp, tp);
    };
    if (shares_heads(tp) && shares_groups(tp) && !unshared_mixers(tp) &&
        (!refused || divides(refused->shape, refused->tp, tp)) &&
        std::ranges::all_of(target_.catalog.tensors, fits))
      sizes.push_back(tp);
  }
  return fmt::format("sizes that divide every tensor and the heads: {}",
                     fmt::join(sizes, ", "));
}

// Checks that each rank has an equal share of each part.
void Checker::check_parts(const Tensor& tensor, uint64_t ranks) const {
  const auto sizes = plan_.mixers.need(source_.path, tensor.name);
  uint64_t sum = 0;
  for (const uint64_t size : sizes) sum += size;
  if (std::ranges::all_of(sizes,
                          [&](uint64_t size) { return size % ranks == 0; }) &&
      !tensor.shape.empty() && tensor.shape[0] == sum)
    return;
  throw unfaithful_error({source_.path, printable(tensor.name)},
                         "its parts ({}) have {} rows, which {} ranks can't "
                         "share equally",
                         fmt::join(parts_of(tensor.name), ", "),
                         fmt::join(sizes, ", "), ranks);
}

// Gives the tensor a rule that holds in the target, or refuses it.
void Checker::check_split(Tensor& tensor) const {
  const uint64_t ranks =
      plan_.ranks_of(parse_legacy_name(tensor.name).is_expert);
  if (tensor.tp.state == State::kUnknown) {
    // If there were several ranks, each already had it whole; else a rule must
    // say.
    if (source_.topology.tp == 1) tensor.tp = tp_rule(tensor.name, facts_);
    if (tensor.tp.state == State::kUnknown && ranks > 1 &&
        source_.topology.tp == 1)
      throw unfaithful_error({source_.path, printable(tensor.name)},
                             "how {} tensor-parallel ranks share it is not "
                             "known",
                             ranks)
          .with_hint("--shard-dims RULES.json can say it");
    if (tensor.tp.state == State::kUnknown) tensor.tp = TpRule::replicated();
  }
  if (tensor.tp.state == State::kSplit && ranks > 1 &&
      !parts_of(tensor.name).empty())
    check_parts(tensor, ranks);
  if (divides(tensor.shape, tensor.tp, ranks)) return;
  throw unfaithful_error(
      {source_.path, printable(tensor.name)},
      "dimension {} of {} can't be cut into {} equal parts{}", tensor.tp.dim,
      to_string(tensor.shape), ranks,
      tensor.tp.groups > 1 ? " of each half" : "")
      .with_hint(possible_sizes(&tensor));
}

void Checker::check_tensors() {
  for (Tensor& tensor : target_.catalog.tensors)
    if (tensor.kind == Kind::model) check_split(tensor);
  const uint64_t tp = plan_.topology.tp;
  if (!shares_heads(tp))
    throw unfaithful_error({source_.path, {}},
                           "{} attention heads for tp={}: Megatron gives "
                           "each rank whole heads",
                           *facts_.num_attention_heads, tp)
        .with_hint(possible_sizes(nullptr));
  if (!shares_groups(tp))
    throw unfaithful_error({source_.path, {}},
                           "{} query groups for tp={}: one must divide the "
                           "other",
                           *facts_.num_query_groups, tp)
        .with_hint(possible_sizes(nullptr) +
                   "; --to megatron_torch_dist takes any that divides the "
                   "rows");
  if (const auto said = unshared_mixers(tp))
    throw unfaithful_error({source_.path, {}},
                           "{}: Megatron gives each rank whole ones", *said)
        .with_hint(possible_sizes(nullptr));
}

// The state of an unwritten parameter would be lost.
void Checker::check_states() const {
  std::unordered_set<std::string_view> models;
  for (const Tensor& tensor : target_.catalog.tensors)
    if (tensor.kind == Kind::model) models.insert(tensor.name);
  for (const Tensor& tensor : target_.catalog.tensors)
    if (tensor.kind == Kind::optim && !models.contains(tensor.param))
      throw unfaithful_error({source_.path, printable(tensor.name)},
                             "state of {}, which is not written",
                             printable(tensor.param))
          .with_hint("--model-only leaves the optimizer out");
}

}  // namespace

void check_shares(const Catalog& source, const Facts& facts,
                  const LegacyPlan& plan, Target& target) {
  Checker checker(source, facts, plan, target);
  checker.check_tensors();
  checker.check_states();
}

}  // namespace ckpt::megatron
