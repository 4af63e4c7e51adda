// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/legacy/states_write.h"

#include <algorithm>
#include <unordered_map>

#include "ckpt/error.h"
#include "formats/megatron/legacy/objects.h"
#include "formats/megatron/legacy/states_state.h"
#include "lib/pickle/json.h"
#include "lib/text/format.h"

namespace ckpt::megatron {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;
using text::printable;
using Params = std::vector<LegacyParam>;

constexpr const char* kMainLists[] = {"fp32_from_fp16_params",
                                      "fp32_from_fp16"};

bool decays_qk_norms(const Catalog& source) {
  const Object* args = find_object(source, "args");
  if (!args || !args->document) return false;
  const Document& document = *args->document;
  const Id flag = document.find(args_dict(document, args->node),
                                "apply_wd_to_qk_layernorm");
  return document.is(flag, Type::kBool) && document.boolean(flag);
}

std::vector<std::pair<DType, DType>> dtypes_of(const Catalog& source) {
  std::vector<std::pair<DType, DType>> all;
  const Object* object = find_object(source, kDtypesObject);
  if (!object || !object->document ||
      !object->document->is(object->node, Type::kList))
    return all;
  const Document& document = *object->document;
  for (const Id pair : document.items(object->node)) {
    if (!document.is(pair, Type::kTuple) || document.items(pair).size() != 2)
      continue;
    const auto param = torch::as_dtype(document, document.items(pair)[0]);
    const auto grad = torch::as_dtype(document, document.items(pair)[1]);
    if (param && grad) all.emplace_back(*param, *grad);
  }
  return all;
}

// A group's settings, for comparison: without its members and its owner.
std::string settings_of(const Document& document, Id group) {
  Document copy;
  const Id root = copy.import(document, group);
  auto json = pickle::to_json(copy, root);
  for (const char* key : {"params", "is_expert_parallel"})
    if (json.is_object()) json.erase(key);
  return json.dump();
}

}  // namespace

namespace {

bool has_state_dict(const Document& document, const std::vector<Id>& subs) {
  return std::ranges::any_of(subs, [&](Id sub) {
    return document.find(inner_optimizer(document, sub), "state") != kNoId;
  });
}

}  // namespace

LegacyStatesWriter::LegacyStatesWriter(const Catalog& source,
                                       const Facts& facts,
                                       const LegacyPlan& plan,
                                       const Target& target)
    : state_(new State{source, facts, plan, target.catalog}) {
  State& state = *state_;
  for (size_t i = 0; i < target.catalog.tensors.size(); ++i) {
    const Tensor& tensor = target.catalog.tensors[i];
    if (tensor.kind == Kind::optim) state.states[tensor.param].push_back(i);
  }
  if (state.states.empty()) return;
  if (!plan.left_out.empty())
    throw unfaithful_error({source.path, printable(plan.left_out)},
                           "is left out, and optimizers count parameters: "
                           "the state of others would take its place")
        .with_hint("--model-only leaves the optimizer out");
  state.shell = find_object(source, kOptimizerObject);
  if (!state.shell || !state.shell->document)
    throw unfaithful_error({source.path, {}},
                           "optimizer tensors, but no parameter groups: "
                           "they would be lost")
        .with_hint("--model-only leaves the optimizer out");
  state.subs = optimizers_in(state.document(), state.shell->node);
  state.flat = !has_state_dict(state.document(), state.subs);
  state.by_chunk =
      state.subs.size() > 2 || (state.subs.size() == 2 && plan.experts == 0);
  state.decay_qk_norms = decays_qk_norms(source);
  state.dtypes = dtypes_of(source);
}

LegacyStatesWriter::~LegacyStatesWriter() = default;

bool LegacyStatesWriter::any() const { return state_->shell != nullptr; }

// The parameters of each of a rank's optimizers.
std::vector<Params> LegacyStatesWriter::State::split(
    const Params& params) const {
  const bool experts =
      plan.own_experts && std::ranges::any_of(params, &LegacyParam::expert);
  size_t count = experts ? 2 : 1;
  if (by_chunk) {
    count = subs.size();
    if (count != plan.vpp && count != plan.vpp + size_t{1})
      throw unfaithful_error({source.path, {}},
                             "{} optimizers, one for each virtual stage, of "
                             "which the target has {}",
                             count, plan.vpp)
          .with_hint("keep pp as it is; --model-only leaves them out");
  }
  auto parts = split_optimizers(params, count, plan.vpp);
  if (!parts) throw bug_error({}, "{} optimizers", count);
  if (!by_chunk && !plan.own_experts && subs.size() == 2) check_merge();
  return std::move(*parts);
}

// Which of the source's optimizers has the settings of the target's i-th.
size_t LegacyStatesWriter::State::source_of(size_t i, size_t count) const {
  return subs.size() == count ? i : std::min(i, subs.size() - 1);
}

// Two optimizers become one: they must have been used alike.
void LegacyStatesWriter::State::check_merge() const {
  const Document& doc = document();
  const Id dense = doc.find(inner_optimizer(doc, subs[0]), "param_groups");
  const Id expert = doc.find(inner_optimizer(doc, subs[1]), "param_groups");
  if (!doc.is(dense, Type::kList) || !doc.is(expert, Type::kList)) return;
  const GroupRules a = read_groups(doc, dense), b = read_groups(doc, expert);
  for (size_t j = 0; j < b.groups.size(); ++j)
    for (size_t i = 0; i < a.groups.size(); ++i)
      if (a.groups[i] == b.groups[j] &&
          settings_of(doc, doc.items(dense)[i]) !=
              settings_of(doc, doc.items(expert)[j]))
        throw unfaithful_error(
            {source.path, {}},
            "experts have optimizer settings of their own, and with ep={} "
            "they share one optimizer with the rest",
            plan.topology.ep)
            .with_hint("--model-only leaves the optimizer out");
}

const std::vector<size_t>& LegacyStatesWriter::State::states_of(
    const LegacyParam& param) const {
  const auto found = states.find(target.tensors[param.index].name);
  if (found != states.end()) return found->second;
  throw unfaithful_error({source.path, target.tensors[param.index].name},
                         "has no optimizer state, others have")
      .with_hint("--model-only leaves the optimizer out");
}

Id LegacyStatesWriter::State::add_state(LegacyFile& file,
                                        const LegacyParam& param, size_t index,
                                        const LegacyCoordinates& at) const {
  const Tensor& tensor = target.tensors[index];
  const Tensor& model = target.tensors[param.index];
  const bool whole = tensor.shape != model.shape;
  return file.add_part(tensor, index, whole ? TpRule::replicated() : model.tp,
                       slot_of(param, at), plan.ranks_of(param.expert));
}

void LegacyStatesWriter::State::add_members(LegacyFile& file, Id dict,
                                            const Params& members,
                                            int64_t first,
                                            const LegacyCoordinates& at,
                                            std::vector<Id>& mains) const {
  Document& doc = file.document;
  for (const LegacyParam& param : members) {
    const Id entry = doc.add_container(Type::kDict);
    for (const size_t index : states_of(param)) {
      const Id value = add_state(file, param, index, at);
      if (target.tensors[index].state == kMainWeights)
        mains.push_back(value);
      else
        doc.set(entry, target.tensors[index].state, value);
    }
    doc.set(dict, doc.add_int(first++), entry);
  }
}

Id LegacyStatesWriter::State::add_sub(LegacyFile& file, Id sub,
                                      const Params& params,
                                      const LegacyCoordinates& at,
                                      bool mark_experts) const {
  Document& doc = file.document;
  const Document& from = document();
  const Id inner = inner_optimizer(from, sub);
  const Id groups = from.find(inner, "param_groups");
  std::unordered_map<Id, Id> substitutes;
  if (!flat && from.is(groups, Type::kList)) {
    GroupRules rules = read_groups(from, groups);
    rules.decay_qk_norms = decay_qk_norms;
    const auto members = split_groups(params, rules);
    const Id dict = doc.add_container(Type::kDict);
    const Id mains = doc.add_container(Type::kList);
    int64_t next = 0;
    size_t main_count = 0;
    for (size_t g = 0; g < members.size(); ++g) {
      std::vector<Id> ids, main_nodes;
      for (size_t i = 0; i < members[g].size(); ++i)
        ids.push_back(doc.add_int(next + static_cast<int64_t>(i)));
      add_members(file, dict, members[g], next, at, main_nodes);
      next += static_cast<int64_t>(members[g].size());
      main_count += main_nodes.size();
      doc.append(mains, doc.add_container(Type::kList, main_nodes));
      const Id list = from.find(from.items(groups)[g], "params");
      if (from.is(list, Type::kList))
        substitutes[list] = doc.add_container(Type::kList, ids);
    }
    if (static_cast<size_t>(next) != params.size())
      throw unfaithful_error({source.path, {}},
                             "the optimizer's {} groups have no place for {} "
                             "of {} parameters",
                             members.size(),
                             params.size() - static_cast<size_t>(next),
                             params.size())
          .with_hint("--model-only leaves the optimizer out");
    const Id shared = from.find(inner, "state");
    substitutes[shared] = dict;
    bool placed = main_count == 0;
    for (const char* key : kMainLists)
      if (const Id list = from.find(sub, key); from.is(list, Type::kList)) {
        substitutes[list] = mains;
        placed = true;
      }
    if (!placed)
      throw unfaithful_error({source.path, {}},
                             "main weights, but the source's optimizer has "
                             "no list of them");
  }
  const Id copy = doc.import(from, sub, substitutes);
  if (mark_experts) {
    const Id list = doc.find(inner_optimizer(doc, copy), "param_groups");
    if (doc.is(list, Type::kList)) {
      const auto items = doc.items(list);
      for (const Id group : std::vector<Id>(items.begin(), items.end()))
        if (doc.find(group, "is_expert_parallel") != kNoId)
          doc.set(group, "is_expert_parallel", doc.add_bool(true));
    }
  }
  return copy;
}

Id LegacyStatesWriter::add_optimizer(LegacyFile& file, const Params& params,
                                     const LegacyCoordinates& at) const {
  const State& state = *state_;
  const auto parts = state.split(params);
  std::vector<Id> all;
  for (size_t i = 0; i < parts.size(); ++i) {
    const size_t from = state.source_of(i, parts.size());
    all.push_back(
        state.add_sub(file, state.subs[from], parts[i], at,
                      i == 1 && !state.by_chunk && state.subs.size() == 1));
  }
  if (all.size() == 1) return all[0];
  Document& doc = file.document;
  if (!state.document().is(state.shell->node, Type::kDict) ||
      state.subs.size() == 1)
    return doc.add_container(Type::kList, all);
  const Id numbered = doc.add_container(Type::kDict);
  for (size_t i = 0; i < all.size(); ++i)
    doc.set(numbered, doc.add_int(static_cast<int64_t>(i)), all[i]);
  return numbered;
}

}  // namespace ckpt::megatron
