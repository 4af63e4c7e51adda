// SPDX-License-Identifier: Apache-2.0
#include "formats/run_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "ckpt/note.h"
#include "containers/torch/tensor_nodes.h"
#include "formats/runs/find/pattern.h"
#include "formats/runs/find/trainer.h"
#include "formats/runs/optimizer/group_names.h"
#include "lib/io/file.h"
#include "lib/pickle/parts.h"
#include "lib/pickle/value.h"
#include "lib/text/format.h"

namespace ckpt::runs {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;

constexpr std::string_view kOptimizer = "optimizer";
constexpr std::string_view kGroups = "optimizer.param_groups.";

class Builder {
 public:
  explicit Builder(Catalog& catalog) : catalog_(catalog) {}

  void build() {
    root_ = document_->add_container(Type::kDict);
    for (const Tensor& tensor : catalog_.tensors)
      if (tensor.kind != Kind::optim) add_tensor(root_, tensor.name, tensor);
    for (const Tensor& tensor : catalog_.tensors)
      if (tensor.kind == Kind::optim) add_state(tensor);
    for (Object& object : catalog_.objects) add_object(object);
    const Id groups = add_groups();
    document_->set_root(root_);
    skeleton_.root = root_;
    skeleton_.document = document_;
    for (Object& object : catalog_.objects)
      if (const auto moved = moved_.find(&object); moved != moved_.end()) {
        object.document = document_;
        object.node = moved->second;
        object.bytes = 0;
      }
    if (groups != kNoId)
      catalog_.objects.push_back({"optimizer.param_groups", document_, groups});
    catalog_.skeleton = std::move(skeleton_);
    catalog_.object_opener = nullptr;
  }

 private:
  void add_tensor(Id dict, std::string_view key, const Tensor& tensor) {
    const Id node = tensor_nodes_.add();
    document_->set(dict, key, node);
    skeleton_.tensors.emplace_back(node, tensor.name);
  }

  Id dict_at(Id dict, const std::string& key) {
    const auto [known, fresh] = dicts_.try_emplace({dict, key}, kNoId);
    if (fresh) {
      known->second = document_->add_container(Type::kDict);
      document_->set(dict, key, known->second);
    }
    return known->second;
  }

  Id optimizer() { return dict_at(root_, std::string(kOptimizer)); }

  // torch's reader recognizes an optimizer by having both state and groups. The
  // optimizers of several models have their own names.
  Id add_groups() {
    if (!dicts_.contains({root_, std::string(kOptimizer)}) ||
        document_->find(optimizer(), "param_groups") != kNoId)
      return kNoId;
    const Id list = document_->add_container(Type::kList);
    document_->set(optimizer(), "param_groups", list);
    return list;
  }

  void add_state(const Tensor& tensor) {
    if (tensor.param.empty() || tensor.state.empty())
      return add_tensor(root_, tensor.name, tensor);
    add_tensor(dict_at(dict_at(optimizer(), "state"), tensor.param),
               tensor.state, tensor);
  }

  Id import(const Object& object) {
    const Document& source = *object.document;
    if (!substitutes_.contains(&source)) {
      auto& subs = substitutes_[&source];
      if (catalog_.skeleton && catalog_.skeleton->document.get() == &source)
        for (const auto& [node, bytes] : catalog_.skeleton->storages) {
          const Id copy = document_->add_persistent(
              document_->import(source, source.items(node)[0]));
          subs[node] = copy;
          skeleton_.storages.emplace_back(copy, bytes);
        }
    }
    return document_->import(source, object.node, substitutes_[&source]);
  }

  // "optimizer.param_groups.0.lr" is a value of a list's dict.
  void add_object(Object& object) {
    if (object.document == nullptr) return;
    const Id value = import(object);
    moved_[&object] = value;
    const std::string_view name = object.name;
    if (name == "optimizer.param_groups")
      return document_->set(optimizer(), "param_groups", value);
    if (name.starts_with(kGroups)) {
      const std::string_view rest = name.substr(kGroups.size());
      const size_t dot = rest.find('.');
      const auto index = whole_number(rest.substr(0, dot));
      if (index && dot != rest.npos) {
        Id& list = group_list_;
        if (list == kNoId) {
          list = document_->add_container(Type::kList);
          document_->set(optimizer(), "param_groups", list);
        }
        constexpr size_t kMostGroups = 100'000;
        while (groups_.size() <= std::min(*index, kMostGroups)) {
          groups_.push_back(document_->add_container(Type::kDict));
          document_->append(list, groups_.back());
        }
        if (*index < groups_.size())
          return document_->set(groups_[*index], rest.substr(dot + 1), value);
      }
    }
    document_->set(root_, name, value);
  }

  Catalog& catalog_;
  std::shared_ptr<Document> document_ = std::make_shared<Document>();
  Skeleton skeleton_;
  torch::TensorNodes tensor_nodes_{*document_};
  Id root_ = kNoId, group_list_ = kNoId;
  std::vector<Id> groups_;
  std::map<std::pair<Id, std::string>, Id> dicts_;
  std::map<const Object*, Id> moved_;
  std::map<const Document*, std::unordered_map<Id, Id>> substitutes_;
};

// An object that holds tensors, as GaLore's and APOLLO's projector does. The
// tensors are written by name, like all; so are its other values, since a
// reader of one file could not put them together again.
class Opened {
 public:
  explicit Opened(Catalog& catalog) : catalog_(catalog) {
    for (const Tensor& tensor : catalog_.tensors) names_.insert(tensor.name);
    if (catalog_.skeleton)
      for (const auto& [node, bytes] : catalog_.skeleton->storages)
        inline_.insert(node);
  }

  void open() {
    std::vector<Object> objects;
    for (Object& object : catalog_.objects)
      if (!object.document || whole(*object.document, object.node))
        objects.push_back(std::move(object));
      else
        take_apart(object, objects);
    catalog_.objects = std::move(objects);
  }

 private:
  bool whole(const Document& document, Id node) const {
    const bool known =
        catalog_.skeleton && catalog_.skeleton->document.get() == &document;
    return std::ranges::all_of(
        pickle::storages_below(document, node),
        [&](Id storage) { return known && inline_.contains(storage); });
  }

  bool is_tensors(const std::string& name) const {
    const auto at = names_.lower_bound(name);
    if (at != names_.end() && *at == name) return true;
    const auto below = names_.lower_bound(name + ".");
    return below != names_.end() && below->starts_with(name + ".");
  }

  void take_apart(const Object& object, std::vector<Object>& objects) {
    const Document& document = *object.document;
    Id values = object.node;
    std::string type = "a dict";
    if (document.is(values, Type::kCall)) {
      const pickle::Call call = document.call(values);
      values = call.state;
      type = document.is(call.callable, Type::kGlobal)
                 ? fmt::format("{}.{}", document.module(call.callable),
                               document.text(call.callable))
                 : "an object";
    }
    const auto pairs =
        values == kNoId ? std::nullopt : document.as_pairs(values);
    uint64_t lost = pairs ? 0 : 1;
    for (size_t i = 0; pairs && i + 1 < pairs->size(); i += 2) {
      const bool named = document.is((*pairs)[i], Type::kString);
      const std::string name =
          object.name + "." +
          (named ? std::string(document.text((*pairs)[i])) : std::string());
      if (named && whole(document, (*pairs)[i + 1]))
        objects.push_back({name, object.document, (*pairs)[i + 1]});
      else if (!named || !is_tensors(name))
        ++lost;
    }
    catalog_.problems.push_back(
        lost == 0 ? warning("object_apart", {catalog_.path, object.name},
                            "{} holds tensors: its values are written by name, "
                            "without the class",
                            text::printable(type))
                  : warning("object_left_out", {catalog_.path, object.name},
                            "{} holds tensors that nothing names; left out: {}",
                            text::printable(type),
                            pairs ? fmt::format("{} of its values", lost)
                                  : "all of it"));
  }

  Catalog& catalog_;
  std::set<std::string> names_;
  std::unordered_set<Id> inline_;
};

}  // namespace

Catalog as_state_dict(Catalog source) {
  if (!source.run) return source;
  load_objects(source);
  for (Tensor& tensor : source.tensors)
    if (tensor.kind == Kind::optim && !tensor.param.empty() &&
        tensor.name == tensor.param + "." + tensor.state)
      tensor.name = "optimizer.state." + tensor.name;
  put_names_in_groups(source);
  Opened(source).open();
  Builder(source).build();
  return source;
}

bool has_foreign_optimizer(const Catalog& source, std::string_view format) {
  return format == "safetensors" && source.run &&
         !find_trainer(source.run->trainer).sole.weights.empty();
}

namespace {

// With the role in front, a loader finds none of its model's names.
void note_roles(Catalog& source) {
  std::vector<std::string> roles;
  for (const std::string& prefix : source.run->models)
    if (std::ranges::any_of(source.tensors, [&](const Tensor& tensor) {
          return tensor.kind == Kind::model && tensor.name.starts_with(prefix);
        }))
      roles.push_back(prefix.substr(0, prefix.size() - 1));
  if (roles.size() < 2) return;
  source.problems.push_back(
      warning("several_models", {source.path, {}},
              "{} models ({}) in one directory, each with its role before its "
              "names, which transformers and vLLM don't load: convert a role "
              "by itself (--part {})",
              roles.size(), fmt::join(roles, ", "), text::printable(roles[0])));
}

// The name of an adapter is in its names in a live model, and not in PEFT's
// files: lora_A.default.weight.
bool is_live_factor(const std::string& name) {
  constexpr std::string_view kFactor = ".lora_A.", kAlone = ".lora_A.weight";
  return name.find(kFactor) != name.npos && !name.ends_with(kAlone);
}

// Of such a model transformers looks for `q_proj.weight`, finds
// `q_proj.base_layer.weight`, and makes the weight up.
void note_adapter_inside(Catalog& source) {
  const auto find = [&](const auto& wanted) {
    return std::ranges::find_if(source.tensors, [&](const Tensor& tensor) {
      return tensor.kind == Kind::model && wanted(tensor.name);
    });
  };
  const auto base = find([](const std::string& name) {
    return name.find(".base_layer.") != name.npos;
  });
  if (base == source.tensors.end() ||
      find(is_live_factor) == source.tensors.end())
    return;
  source.problems.push_back(warning(
      "adapter_inside", {source.path, base->name},
      "the names are PEFT's, of a base with an adapter in it that is "
      "not added: transformers and vLLM load neither. --adapter-alpha N "
      "adds it in the same command, with the alpha that it was trained "
      "with"));
}

}  // namespace

namespace {

Catalog weights_alone(Catalog source, std::string_view where,
                      std::string_view instead, bool scripts = false) {
  const bool weights = std::ranges::any_of(
      source.tensors,
      [](const Tensor& tensor) { return tensor.kind == Kind::model; });
  if (weights) note_adapter_inside(source);
  if (!(source.run || scripts) || !weights) return source;  // --optim-only
  if (source.run) note_roles(source);
  size_t count = 0;
  uint64_t bytes = 0;
  std::erase_if(source.tensors, [&](const Tensor& tensor) {
    if (tensor.kind == Kind::model) return false;
    ++count;
    bytes += byte_size(tensor);
    return true;
  });
  if (count > 0)
    source.problems.push_back(
        warning("optimizer_left_out", {source.path, {}},
                "left out: {} tensors of optimizer and other state ({}), and "
                "what else is only for training (-v lists it): {} has no "
                "place for it ({})",
                count, text::iec_size(bytes), where, instead));
  return source;
}

}  // namespace

Catalog model_only(Catalog source) {
  return weights_alone(std::move(source), "a directory of weights",
                       "--to dcp and --to torch keep them");
}

Catalog without_optimizer(Catalog source) {
  return weights_alone(std::move(source), "a directory of weights",
                       "--to dcp and --to torch keep them", true);
}

Catalog for_one_file(Catalog source, std::string_view format, bool scripts) {
  if (format != "safetensors") return source;
  scripts = scripts && source.format == "torch" && source.files.size() == 1;
  return weights_alone(std::move(source), "a file of weights",
                       "--with-optimizer writes them", scripts);
}

}  // namespace ckpt::runs
