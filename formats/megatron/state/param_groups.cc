// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/state/param_groups.h"

#include <algorithm>
#include <array>

#include "ckpt/error.h"
#include "formats/megatron/model/facts.h"
#include "formats/megatron/options.h"
#include "formats/megatron/state/common.h"
#include "formats/megatron/state/optimizer_groups.h"
#include "formats/megatron/state/rank_objects.h"
#include "lib/pickle/json.h"

namespace ckpt::megatron {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;

// What only Megatron has in a group.
constexpr auto kOwn = std::to_array<std::string_view>(
    {"wd_mult", "lr_mult", "pre_wd_mult", "pre_lr_mult", "is_expert_parallel",
     "is_decoupled_lr", "default_config", "max_lr", "min_lr", "start_wd",
     "end_wd", "step", "params", "bias_correction"});

Id entry(const Document& document, Id group, const std::string& key) {
  const Id value = document.find(group, key);
  return value == kNoId ? document.find(group, "pre_" + key) : value;
}

bool is_true(const Document& document, Id value) {
  return document.is(value, Type::kBool) && document.boolean(value);
}

}  // namespace

bool decays(const std::string& param, const Shape& shape) {
  return shape.size() != 1 && !param.ends_with(".bias");
}

ParamGroups::ParamGroups(const Catalog& catalog) : catalog_(catalog) {
  const auto object =
      std::ranges::find(catalog.objects, kOptimizerObject, &Object::name);
  if (object != catalog.objects.end() && object->document) {
    document_ = object->document;
    for (const Id one : chained(*document_, object->node)) add(one);
  }
  if (groups_.empty())
    throw unfaithful_error({catalog.path, {}},
                           "there is optimizer state, but nothing about its "
                           "parameter groups")
        .with_hint("--model-only leaves the optimizer out");
  for (const Object& one : catalog.objects)
    if (one.name == kArgs && one.document)
      norms_decay_ = is_true(
          *one.document, one.document->find(args_dict(*one.document, one.node),
                                            "apply_wd_to_qk_layernorm"));
}

void ParamGroups::add(Id optimizer) {
  const Document& document = *document_;
  Id inner = document.find(optimizer, "optimizer");
  if (inner == kNoId) inner = optimizer;
  const Id list = document.find(inner, "param_groups");
  if (!document.is(list, Type::kList)) return;
  for (const Id group : document.items(list)) add_group(group);
  const Id common = document.find(document.find(inner, "state"), "common_step");
  if (const auto step = document.as_real(common)) step_ = step;
}

void ParamGroups::add_group(Id dict) {
  const Document& document = *document_;
  const auto decay = document.as_real(entry(document, dict, "wd_mult"));
  Group group{.dict = dict, .decays = decay.value_or(1) != 0};
  group.expert = is_true(document, entry(document, dict, "is_expert_parallel"));
  if (is_true(document, entry(document, dict, "is_decoupled_lr")))
    throw unfaithful_error({catalog_.path, {}},
                           "embeddings have a learning rate of their own "
                           "(is_decoupled_lr): no other optimizer's groups say "
                           "which parameters these are")
        .with_hint("--model-only leaves the optimizer out");
  const Id corrected = document.find(dict, "bias_correction");
  if (document.is(corrected, Type::kBool) && !document.boolean(corrected))
    throw unfaithful_error({catalog_.path, {}},
                           "its Adam has no bias_correction, which torch's has")
        .with_hint("--model-only leaves the optimizer out");
  const auto pairs = document.as_pairs(dict);
  for (size_t i = 0; pairs && i + 1 < pairs->size(); i += 2) {
    const Id key = (*pairs)[i];
    if (!document.is(key, Type::kString)) continue;
    const std::string_view name = document.text(key);
    if (std::ranges::find(kOwn, name) == kOwn.end())
      group.text += std::string(name) + "=" +
                    pickle::to_json(document, (*pairs)[i + 1]).dump() + "\n";
  }
  const auto step = document.as_real(document.find(dict, "step"));
  if (step && step_.value_or(*step) != *step)
    throw unfaithful_error({catalog_.path, {}},
                           "groups of parameters were updated {} and {} times",
                           *step_, *step)
        .with_hint("--model-only leaves the optimizer out");
  if (step) step_ = step;
  groups_.push_back(std::move(group));
}

size_t ParamGroups::of(const std::string& param, const Shape& shape) const {
  const bool experts = std::ranges::any_of(groups_, &Group::expert);
  const bool expert = experts && param.find(".experts.") != param.npos;
  const bool norm = norms_decay_ && (param.find("q_layernorm.") != param.npos ||
                                     param.find("k_layernorm.") != param.npos);
  const bool decaying = norm || decays(param, shape);
  std::optional<size_t> found;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    if (group.expert != expert || group.decays != decaying) continue;
    if (!found)
      found = g;
    else if (groups_[*found].text != group.text)
      throw unfaithful_error({catalog_.path, param},
                             "two groups of parameters with other options may "
                             "have it, and nothing says which one does")
          .with_hint("--model-only leaves the optimizer out");
  }
  if (!found)
    throw unfaithful_error(
        {catalog_.path, param},
        "no group of the optimizer has parameters {} weight decay",
        decaying ? "with" : "without")
        .with_hint("--model-only leaves the optimizer out");
  return *found;
}

GroupOptions ParamGroups::options(size_t group, Document& into) const {
  const Document& document = *document_;
  GroupOptions options;
  const Id dict = groups_.at(group).dict;
  const auto pairs = document.as_pairs(dict);
  for (size_t i = 0; pairs && i + 1 < pairs->size(); i += 2) {
    const Id key = (*pairs)[i];
    if (!document.is(key, Type::kString)) continue;
    const std::string name(document.text(key));
    if (std::ranges::find(kOwn, name) == kOwn.end())
      options.emplace_back(name, into.import(document, (*pairs)[i + 1]));
  }
  const Id peak = document.find(dict, "max_lr");
  if (peak != kNoId)
    options.emplace_back("initial_lr", into.import(document, peak));
  return options;
}

namespace {

Id group_of(Document& document, const Document& from,
            const GroupOptions& options, bool decaying, bool expert,
            double step) {
  const Id group = document.add_container(Type::kDict);
  const auto flag = [&](const char* key, bool value) {
    document.set(group, key, document.add_bool(value));
  };
  document.set(group, "wd_mult", document.add_float(decaying ? 1 : 0));
  document.set(group, "lr_mult", document.add_float(1));
  flag("is_expert_parallel", expert);
  flag("is_decoupled_lr", false);
  flag("default_config", true);
  for (const auto& [key, value] : options)
    document.set(group, key, document.import(from, value));
  document.set(group, "step", document.add_int(static_cast<int64_t>(step)));
  return group;
}

Id with_groups(Document& document, const std::vector<Id>& groups) {
  const Id inner = document.add_container(Type::kDict);
  document.set(inner, "param_groups",
               document.add_container(Type::kList, groups));
  const Id optimizer = document.add_container(Type::kDict);
  document.set(optimizer, "optimizer", inner);
  document.set(optimizer, "param_state_sharding_type",
               document.add_string(kFullyReshardable));
  return optimizer;
}

}  // namespace

Object make_optimizer(const Document& from, const GroupOptions& decaying,
                      const GroupOptions& others, double step) {
  auto document = std::make_shared<Document>();
  const Id root = with_groups(
      *document, {group_of(*document, from, decaying, true, false, step),
                  group_of(*document, from, others, false, false, step)});
  document->set_root(root);
  return {.name = std::string(kOptimizerObject),
          .document = std::move(document),
          .node = root};
}

void chain_experts(Catalog& catalog) {
  const auto object =
      std::ranges::find(catalog.objects, kOptimizerObject, &Object::name);
  if (object == catalog.objects.end() || !object->document) return;
  auto document = std::make_shared<Document>();
  const Id dense = document->import(*object->document, object->node);
  const Id experts = document->import(*object->document, object->node);
  const Id list =
      document->find(document->find(experts, "optimizer"), "param_groups");
  if (!document->is(list, Type::kList)) return;  // a chain already
  const std::vector<Id> groups(document->items(list).begin(),
                               document->items(list).end());
  for (const Id group : groups)
    document->set(group, "is_expert_parallel", document->add_bool(true));
  const Id chain = document->add_container(
      Type::kDict,
      {document->add_int(0), dense, document->add_int(1), experts});
  document->set_root(chain);
  *object = {.name = object->name, .document = document, .node = chain};
}

}  // namespace ckpt::megatron
