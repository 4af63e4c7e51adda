// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/legacy/plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <unordered_set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/megatron/legacy/names.h"
#include "formats/megatron/legacy/stages.h"
#include "formats/megatron/options.h"
#include "lib/text/format.h"

namespace ckpt::megatron {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;
using text::printable;

using Keys = std::vector<LegacyKey>;

std::string joined(const std::vector<std::string>& path) {
  return fmt::format("{}", fmt::join(path, "."));
}

// The object "model.keys", as the reader made it. Nothing if it has another
// shape.
std::vector<Keys> keys_of(const Object& object) {
  std::vector<Keys> chunks;
  const Document& document = *object.document;
  if (!document.is(object.node, Type::kList)) return chunks;
  for (const Id chunk : document.items(object.node)) {
    Keys& keys = chunks.emplace_back();
    if (!document.is(chunk, Type::kList)) return {};
    for (const Id entry : document.items(chunk)) {
      if (!document.is(entry, Type::kTuple) ||
          document.items(entry).size() != 3)
        return {};
      const auto parts = document.items(entry);
      LegacyKey& key = keys.emplace_back();
      if (!document.is(parts[0], Type::kTuple)) return {};
      for (const Id part : document.items(parts[0]))
        key.path.emplace_back(document.text(part));
      key.name = joined(key.path);
      const auto kind = document.as_int(parts[1]);
      if (!kind || *kind < 0 || *kind > 2) return {};
      key.kind = static_cast<KeyKind>(*kind);
      key.value = parts[2];
    }
  }
  return chunks;
}

class Planner {
 public:
  Planner(const Catalog& source, const Facts& facts, const Layout& layout,
          Target& target)
      : source_(source),
        facts_(facts),
        layout_(layout),
        wanted_(wanted_of(layout)),
        target_(target) {
    for (const Tensor& tensor : source.tensors)
      if (tensor.kind == Kind::model) models_.insert(tensor.name);
    ours_ = source.format == "megatron_legacy";
  }

  LegacyPlan plan() {
    plan_.topology = layout_.topology;
    plan_.cp = facts_.cp.value_or(1);
    plan_.vocab_multiple = wanted_.vocab_multiple;
    plan_.tied =
        layout_.topology.pp > 1 && !facts_.untied.value_or(!facts_.any);
    std::vector<Keys> chunks = source_chunks();
    count_experts(chunks);
    choose_expert_ranks();
    const uint32_t pp = layout_.topology.pp;
    const uint32_t vpp = source_vpp(chunks);
    const bool same_stages = ours_ && source_.topology.pp == pp &&
                             chunks.size() % pp == 0 && !chunks.empty() &&
                             wanted_.stage_layers.empty() &&
                             (wanted_.vpp == 0 || wanted_.vpp == vpp);
    if (same_stages)
      keep_stages(std::move(chunks));
    else
      share_out(flatten(chunks), wanted_.vpp != 0 ? wanted_.vpp : vpp);
    number_layers();
    plan_.same_ranks = ours_ && source_.topology.tp == plan_.topology.tp &&
                       source_.topology.pp == pp &&
                       source_.topology.ep == plan_.topology.ep &&
                       facts_.etp.value_or(source_.topology.tp) == plan_.etp;
    return std::move(plan_);
  }

 private:
  void assume(std::string text) {
    target_.assumptions.push_back(std::move(text));
  }

  // The source's chunks, or one chunk of the catalog's names.
  std::vector<Keys> source_chunks() {
    std::vector<Keys> chunks;
    if (const Object* object = find_object(source_, kModelObject);
        ours_ && object && object->document)
      chunks = keys_of(*object);
    std::unordered_set<std::string_view> known;
    bool nested = false;
    for (Keys& keys : chunks) {
      std::erase_if(keys, [&](LegacyKey& key) {
        if (resolve(key)) return false;
        plan_.left_out = key.name;
        return true;
      });
      for (const LegacyKey& key : keys) {
        known.insert(key.tensor);
        nested = nested || key.path.size() > 1;
      }
    }
    for (const std::string_view name : models_) {
      if (known.contains(name)) continue;
      if (nested)
        throw unfaithful_error({source_.path, printable(name)},
                               "has no place in the source's nested dicts")
            .with_hint("without --rename it has");
      return names_alone();
    }
    return chunks;
  }

  // Finds a key's tensor; false if it was left out.
  bool resolve(LegacyKey& key) const {
    if (key.kind != KeyKind::kTensor) return true;
    key.tensor = key.name;
    if (models_.contains(key.tensor)) return true;
    const auto embedding = embedding_of_copy(key.name);
    if (!embedding || !models_.contains(*embedding)) return false;
    key.tensor = *embedding;
    return true;
  }

  std::vector<Keys> names_alone() const {
    Keys keys;
    for (const Tensor& tensor : source_.tensors)
      if (tensor.kind == Kind::model)
        keys.push_back({.path = {tensor.name},
                        .name = tensor.name,
                        .tensor = tensor.name});
    return {std::move(keys)};
  }

  void count_experts(const std::vector<Keys>& chunks) {
    for (const Keys& keys : chunks)
      for (const LegacyKey& key : keys)
        if (const auto name = parse_legacy_name(key.name); name.expert)
          plan_.experts = std::max(plan_.experts, name.expert->value + 1);
    const uint32_t ep = layout_.topology.ep;
    if (ep > 1 && plan_.experts == 0)
      throw unfaithful_error({source_.path, {}},
                             "ep={}, but the model has no numbered experts", ep)
          .with_hint("leave --ep out, or give --ep 1");
    if (plan_.experts % ep != 0)
      throw unfaithful_error({source_.path, {}},
                             "{} experts can't be shared by ep={} ranks",
                             plan_.experts, ep)
          .with_hint("--ep must divide the number of experts");
  }

  // Experts follow tp unless the source says otherwise.
  void choose_expert_ranks() {
    const uint64_t tp = layout_.topology.tp;
    const uint64_t old_tp = facts_.tp.value_or(1);
    const uint64_t old = facts_.etp.value_or(old_tp);
    plan_.etp = old == old_tp ? tp : old;
    if (plan_.etp == 0 || tp % plan_.etp != 0) plan_.etp = 1;
    if (const uint32_t asked = wanted_.etp; asked != 0) {
      if (tp % asked != 0)
        throw unfaithful_error({source_.path, {}},
                               "--etp {} does not divide tp={}", asked, tp)
            .with_hint(
                "ranks with more expert parts than tensor-parallel "
                "ranks write over each other's files");
      plan_.etp = asked;
    }
    plan_.own_experts =
        plan_.experts != 0 && (layout_.topology.ep > 1 || plan_.etp != tp);
    if (plan_.experts != 0 && (tp > 1 || old_tp > 1))
      assume(fmt::format("experts: expert_tensor_parallel_size {} (tp={})",
                         plan_.etp, tp));
    const uint64_t stage = tp * layout_.topology.dp * plan_.cp;
    const uint64_t expert_ranks = plan_.etp * layout_.topology.ep;
    if (stage % expert_ranks != 0)
      target_.problems.push_back(remark(
          "world_size", {},
          "{} ranks to a stage (tp={} dp={}) don't hold ep={} "
          "times {} expert parts: train with a dp that does",
          stage, tp, layout_.topology.dp, layout_.topology.ep, plan_.etp));
  }

  uint32_t source_vpp(const std::vector<Keys>& chunks) const {
    const uint32_t pp = ours_ ? std::max<uint32_t>(1, source_.topology.pp) : 1;
    const size_t vpp = chunks.size() / pp;
    return vpp == 0 ? 1 : static_cast<uint32_t>(vpp);
  }

  uint32_t plan_pp() const { return layout_.topology.pp; }

  void keep_stages(std::vector<Keys> chunks) {
    plan_.vpp = static_cast<uint32_t>(chunks.size() / layout_.topology.pp);
    plan_.chunks = std::move(chunks);
    if (layout_.topology.pp > 1) assume("pipeline stages: as in the source");
  }

  // All keys once, in the model's order, without copies of the embedding.
  Keys flatten(std::vector<Keys>& chunks) const {
    Keys all;
    std::unordered_set<std::string> seen;
    for (Keys& keys : chunks)
      for (LegacyKey& key : keys) {
        if (key.kind == KeyKind::kTensor && key.tensor != key.name) continue;
        if (seen.insert(key.name).second) all.push_back(std::move(key));
      }
    return all;
  }

  void share_out(const Keys& keys, uint32_t vpp) {
    std::string assumption;
    const StageSplit split =
        split_stages(source_, facts_, keys, layout_.topology.pp, vpp,
                     assumption, wanted_.stage_layers);
    const uint32_t asked = wanted_.vpp;
    if (asked != 0 && (split.vpp != asked || (asked > 1 && plan_pp() == 1)))
      throw unfaithful_error({source_.path, {}},
                             "--vpp {}: the layers are not {} x {} equal parts",
                             asked, plan_pp(), asked)
          .with_hint(plan_pp() == 1
                         ? "virtual stages need several stages (--pp)"
                         : "--pp-layout says the layers of each part");
    plan_.own_stages = true;
    plan_.vpp = split.vpp;
    plan_.first_stage = split.first_stage;
    plan_.last_stage = split.last_stage;
    plan_.notation = split.notation;
    if (!assumption.empty()) assume(std::move(assumption));
    plan_.chunks = fill_stages(keys, split, layout_.topology.pp, plan_.tied);
  }

  void number_layers() {
    std::map<std::string, std::set<uint64_t>> seen;
    const size_t count = plan_.chunks.size();
    for (size_t i = 0; i < count; ++i)
      for (const LegacyKey& key : plan_.chunks[i]) {
        const LegacyName name = parse_legacy_name(key.name);
        // A layer without tensors was left out, even if it has other entries.
        if (!name.layer || key.kind != KeyKind::kTensor) continue;
        auto& first = plan_.first_layer[name.stack];
        first.resize(count, UINT64_MAX);
        first[i] = std::min(first[i], name.layer->value);
        seen[name.stack].insert(name.layer->value);
      }
    for (const auto& [stack, layers] : seen)
      if (*layers.rbegin() + 1 != layers.size() ||
          (seen.size() == 1 &&
           facts_.num_layers.value_or(layers.size()) != layers.size()))
        throw unfaithful_error(
            {source_.path, {}},
            "{} of {} layers ({}#) are to be written: ranks count theirs "
            "from zero, so that others would take their places",
            layers.size(),
            std::max(*layers.rbegin() + 1, facts_.num_layers.value_or(0)),
            printable(stack))
            .with_hint("unshard writes any selection of layers");
  }

  const Catalog& source_;
  const Facts& facts_;
  const Layout& layout_;
  const Wanted wanted_;
  Target& target_;
  std::unordered_set<std::string_view> models_;
  bool ours_ = false;
  LegacyPlan plan_;
};

}  // namespace

LegacyPlan plan_legacy(const Catalog& source, const Facts& facts,
                       const Layout& layout, Target& target) {
  return Planner(source, facts, layout, target).plan();
}

// Rank r of a stage is tensor rank r % tp and expert rank r / etp % ep. Dense
// states are read by the first tp ranks, experts' by the first etp * ep.
std::vector<LegacyCoordinates> legacy_ranks(const LegacyPlan& plan) {
  const uint64_t tp = plan.topology.tp;
  const uint64_t expert_ranks = plan.etp * plan.topology.ep;
  std::vector<LegacyCoordinates> all;
  for (uint32_t p = 0; p < plan.topology.pp; ++p)
    for (uint64_t r = 0; r < std::lcm(tp, expert_ranks); ++r)
      all.push_back(
          {.tp = static_cast<uint32_t>(r % tp),
           .pp = p,
           .ep = static_cast<uint32_t>(r / plan.etp % plan.topology.ep),
           .rank = r,
           .dense_states = r < tp,
           .expert_states = r < expert_ranks});
  return all;
}

std::string legacy_dir(const LegacyPlan& plan, const LegacyCoordinates& at) {
  std::string name = fmt::format("mp_rank_{:02}", at.tp);
  if (plan.topology.pp > 1) name += fmt::format("_{:03}", at.pp);
  if (plan.topology.ep > 1) name += fmt::format("_{:03}", at.ep);
  return name;
}

const Object* find_object(const Catalog& catalog, std::string_view name) {
  for (const Object& object : catalog.objects)
    if (object.name == name) return &object;
  return nullptr;
}

}  // namespace ckpt::megatron
