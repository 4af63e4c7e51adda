// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/state/optimizer_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "ckpt/error.h"
#include "formats/megatron/options.h"
#include "formats/megatron/state/group_objects.h"
#include "lib/pickle/json.h"
#include "lib/text/number.h"

namespace ckpt::megatron {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;

constexpr std::string_view kGroup = "optimizer.distributed.dp_group_idx_";
constexpr char kType[] = "param_state_sharding_type";

// What distinguishes parameter groups when they are loaded. Some writers prefix
// the multipliers with pre_.
constexpr const char* kIdentity[] = {"wd_mult", "lr_mult", "is_expert_parallel",
                                     "is_decoupled_lr"};

std::string text_of(const Document& document, Id value) {
  return pickle::to_json(document, value).dump();
}

std::string identity(const Document& document, Id group) {
  std::string text;
  for (const char* key : kIdentity) {
    Id value = document.find(group, key);
    if (value == kNoId) value = document.find(group, std::string("pre_") + key);
    text += value == kNoId ? "-" : text_of(document, value);
    text += ' ';
  }
  return text;
}

// Which of the chained optimizers an object belongs to, and what it is:
// "optimizer", "grad_scaler".
struct GroupObject {
  uint64_t chain = 0;
  bool chained = false;
  std::string what;
};
std::optional<GroupObject> parse_group_object(std::string_view name) {
  GroupObject object;
  name = name.substr(0, name.find('/'));
  if (name.starts_with("chained_")) {
    name.remove_prefix(8);
    const auto chain = text::take_number(name);
    if (!chain || !name.starts_with('.')) return std::nullopt;
    name.remove_prefix(1);
    object.chain = *chain;
    object.chained = true;
  }
  if (!name.starts_with(kGroup)) return std::nullopt;
  name.remove_prefix(kGroup.size());
  const size_t dot = name.find('.');
  if (dot == name.npos) return std::nullopt;
  object.what = name.substr(dot + 1);
  return object;
}

// One optimizer of the target, gathered from the objects of its ranks.
class Gather {
 public:
  Gather(CommonEditor& editor, const Catalog& catalog)
      : editor_(editor), catalog_(catalog) {}

  void add_groups(const Object& object) {
    const Value value = value_of(catalog_, object);
    const Document& from = *value.document;
    const Id list = from.find(value.node, "param_groups");
    if (!from.is(list, Type::kList))
      throw input_error({catalog_.path, object.name}, "has no param_groups");
    for (const Id group : from.items(list)) {
      const std::string text = text_of(from, group);
      const auto [at, fresh] = texts_.emplace(identity(from, group), text);
      if (fresh) {
        groups_.push_back(editor_.import(from, group));
      } else if (at->second != text) {
        throw unfaithful_error({catalog_.path, object.name},
                               "its parameter groups are not those of other "
                               "ranks: {} and {}",
                               at->second, text);
      }
    }
  }

  void add_scaler(const Object& object) {
    if (scaler_ == kNoId) scaler_ = editor_.import_object(object);
  }

  Id build() const {
    Document& document = editor_.document();
    const Id inner = document.add_container(Type::kDict);
    document.set(inner, "param_groups",
                 document.add_container(Type::kList, groups_));
    const Id dict = document.add_container(Type::kDict);
    document.set(dict, "optimizer", inner);
    if (scaler_ != kNoId) document.set(dict, "grad_scaler", scaler_);
    return dict;
  }

 private:
  CommonEditor& editor_;
  const Catalog& catalog_;
  std::map<std::string, std::string> texts_;  // of groups, by identity
  std::vector<Id> groups_;
  Id scaler_ = kNoId;
};

// Gathers the objects of flat buffers. kNoId if there are none.
Id gather(CommonEditor& editor, const Catalog& catalog) {
  std::map<uint64_t, Gather> optimizers;
  bool chain = false;
  for (const Object& object : catalog.objects) {
    const auto what = parse_group_object(object.name);
    if (!what) continue;
    chain |= what->chained;
    auto& one =
        optimizers.try_emplace(what->chain, editor, catalog).first->second;
    if (what->what == "optimizer") one.add_groups(object);
    if (what->what == "grad_scaler") one.add_scaler(object);
  }
  if (optimizers.empty()) return kNoId;
  Document& document = editor.document();
  if (!chain) return optimizers.begin()->second.build();
  std::vector<Id> pairs;
  for (const auto& [number, one] : optimizers) {
    pairs.push_back(document.add_int(static_cast<int64_t>(number)));
    pairs.push_back(one.build());
  }
  return document.add_container(Type::kDict, pairs);
}

// The dict without some of its entries, in the same order.
Id without(Document& document, Id dict,
           std::initializer_list<std::string_view> keys) {
  const auto pairs = document.as_pairs(dict);
  if (!pairs) return dict;
  std::vector<Id> kept;
  for (size_t i = 0; i + 1 < pairs->size(); i += 2) {
    const Id key = (*pairs)[i];
    const bool drop = document.is(key, Type::kString) &&
                      std::ranges::find(keys, document.text(key)) != keys.end();
    if (drop) continue;
    kept.push_back(key);
    kept.push_back((*pairs)[i + 1]);
  }
  return document.add_container(Type::kDict, kept);
}

// A parameter group as a distributed optimizer has it: with the step and all
// that identifies it, without the list of parameters.
Id finish_group(Document& document, Id group, std::optional<double> step,
                Catalog& catalog) {
  group = without(document, group, {"params"});
  if (step && document.find(group, "step") == kNoId)
    document.set(group, "step", document.add_float(*step));
  for (const char* key : {"is_expert_parallel", "is_decoupled_lr"}) {
    if (document.find(group, key) != kNoId) continue;
    document.set(group, key, document.add_bool(false));
    catalog.assumptions.push_back(
        fmt::format("optimizer: a parameter group without {} has False", key));
  }
  return group;
}

// {"optimizer": inner, …}, or an fp32 optimizer's inner alone.
Id finish_optimizer(CommonEditor& editor, Id optimizer, Catalog& catalog) {
  Document& document = editor.document();
  optimizer = without(
      document, optimizer,
      {"param_state", kType, "fp32_from_fp16_params", "fp32_from_fp16"});
  Id inner = document.find(optimizer, "optimizer");
  const bool bare = inner == kNoId;
  if (bare) inner = optimizer;
  const Id list = document.find(inner, "param_groups");
  if (!document.is(list, Type::kList))
    throw unfaithful_error({catalog.path, {}},
                           "the common part says nothing about the "
                           "optimizer's parameter groups");
  const auto step = editor.scalar(
      document.find(document.find(inner, "state"), "common_step"));
  std::vector<Id> groups;
  const std::vector<Id> items(document.items(list).begin(),
                              document.items(list).end());
  for (const Id group : items)
    groups.push_back(finish_group(document, group, step, catalog));
  inner = without(document, inner, {"state"});
  document.set(inner, "param_groups",
               document.add_container(Type::kList, groups));
  if (bare) optimizer = document.add_container(Type::kDict);
  document.set(optimizer, "optimizer", inner);
  document.set(optimizer, kType, document.add_string(kFullyReshardable));
  return optimizer;
}

}  // namespace

std::vector<Id> chained(const Document& document, Id optimizer) {
  if (document.is(optimizer, Type::kList)) {
    const auto items = document.items(optimizer);
    return {items.begin(), items.end()};
  }
  const auto pairs = document.as_pairs(optimizer);
  if (!pairs) return {};
  std::vector<Id> all;
  for (size_t i = 0; i + 1 < pairs->size(); i += 2) {
    if (!document.is((*pairs)[i], Type::kInt)) return {optimizer};
    all.push_back((*pairs)[i + 1]);
  }
  return all;
}

std::string sharding_type(const Catalog& catalog) {
  std::string found;
  for (const Object& object : catalog.objects) {
    if (!object.document || !found.empty()) continue;
    const Document& document = *object.document;
    Id type = kNoId;
    if (object.name == "content_metadata")
      type = document.find(object.node, "distrib_optim_sharding_type");
    if (object.name == "optimizer")
      for (const Id one : chained(document, object.node))
        if (type == kNoId) type = document.find(one, kType);
    if (document.is(type, Type::kString)) found = document.text(type);
  }
  return found;
}

bool is_group_object(const Object& object) {
  return parse_group_object(object.name).has_value();
}

bool is_state_object(const Object& object) {
  const auto what = parse_group_object(object.name);
  return what && what->what == "param_state";
}

void set_optimizer(CommonEditor& editor, Catalog& catalog) {
  Document& document = editor.document();
  Id optimizer = gather(editor, catalog);
  if (optimizer == kNoId) optimizer = editor.find("optimizer");
  const std::vector<Id> parts = chained(document, optimizer);
  if (parts.empty())
    throw unfaithful_error({catalog.path, {}},
                           "there is optimizer state, but nothing about its "
                           "parameter groups");
  if (parts.size() == 1 && parts[0] == optimizer) {
    editor.set("optimizer", finish_optimizer(editor, optimizer, catalog));
    return;
  }
  std::vector<Id> pairs;
  for (size_t i = 0; i < parts.size(); ++i) {
    pairs.push_back(document.add_int(static_cast<int64_t>(i)));
    pairs.push_back(finish_optimizer(editor, parts[i], catalog));
  }
  editor.set("optimizer", document.add_container(Type::kDict, pairs));
}

void set_content_metadata(CommonEditor& editor) {
  Document& document = editor.document();
  Id metadata = editor.find("content_metadata");
  if (!document.is(metadata, Type::kDict)) {
    metadata = document.add_container(Type::kDict);
    document.set(metadata, "singleton_local_shards", document.add_bool(false));
  }
  document.set(metadata, "chained_optim_avoid_prefix", document.add_bool(true));
  document.set(metadata, "distrib_optim_sharding_type",
               document.add_string(kFullyReshardable));
  document.set(metadata, "distrib_optim_fully_reshardable_mem_efficient",
               document.add_bool(false));
  editor.set("content_metadata", metadata);
}

}  // namespace ckpt::megatron
