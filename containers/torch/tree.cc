// SPDX-License-Identifier: Apache-2.0
#include "containers/torch/tree.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "ckpt/error.h"
#include "containers/torch/rebuild.h"
#include "containers/torch/walk.h"
#include "lib/text/format.h"

namespace ckpt::torch {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;

// The name of a tensor without a path: torch.save(tensor, path).
constexpr std::string_view kLoneTensor = "tensor";
constexpr std::string_view kLoneObject = "object";

bool is_strided(Rebuild rebuild) {
  return rebuild == Rebuild::kTensor || rebuild == Rebuild::kTensorV2 ||
         rebuild == Rebuild::kTensorV3 || rebuild == Rebuild::kQuantized;
}

// Finds calls of known functions that could not have been made. They may be
// inside values that are shown as objects, so all nodes are checked.
void check_calls(const Container& container) {
  const Document& document = *container.document;
  for (Id node = 0; node < document.size(); ++node) {
    if (document.type(node) != Type::kCall) continue;
    if (document.is_call(node, "collections", "OrderedDict") &&
        !document.as_pairs(node))
      throw input_error({container.path, {}},
                        "the pickle: an OrderedDict of something that is not a "
                        "list of pairs");
    if (!is_strided(rebuild_of(document, node))) continue;
    const Id args = document.call(node).args;
    const bool has_storage = document.is(args, Type::kTuple) &&
                             !document.items(args).empty() &&
                             container.storages.find(document.items(args)[0]);
    if (!has_storage) as_tensor(document, node, container.storages);
  }
}

// The storages below a small value (a quantizer), by depth first.
void add_storages_below(const Document& document, Id root,
                        std::vector<Id>& found) {
  constexpr size_t kMax = 256;
  std::vector<Id> queue{root};
  std::unordered_set<Id> seen;
  while (!queue.empty() && seen.size() < kMax) {
    const Id node = queue.back();
    queue.pop_back();
    if (node == kNoId || !seen.insert(node).second) continue;
    if (document.is(node, Type::kPersistent)) {
      found.push_back(node);
    } else if (document.is(node, Type::kTuple)) {
      for (const Id item : document.items(node)) queue.push_back(item);
    } else if (document.is(node, Type::kCall)) {
      queue.push_back(document.call(node).args);
    }
  }
}

// An optimizer's state_dict: {"state": …, "param_groups": …}.
struct Optimizer {
  size_t depth = 0;  // of the dict: the length of its path
  // key in "state" -> the parameter's name, if param_groups give it
  std::unordered_map<std::string, std::string> names;
};

bool is_optimizer(const Document& document, Id node) {
  return document.find(node, "state") != kNoId &&
         document.find(node, "param_groups") != kNoId;
}

Optimizer read_optimizer(const Document& document, Id node, size_t depth) {
  Optimizer optimizer{.depth = depth, .names = {}};
  const Id groups = document.find(node, "param_groups");
  if (!document.is(groups, Type::kList)) return optimizer;
  for (const Id group : document.items(groups)) {
    const Id params = document.find(group, "params");
    const Id names = document.find(group, "param_names");
    if (!document.is(params, Type::kList) || !document.is(names, Type::kList))
      continue;
    const auto keys = document.items(params);
    const auto texts = document.items(names);
    for (size_t i = 0; i < keys.size() && i < texts.size(); ++i)
      if (document.is(texts[i], Type::kString))
        optimizer.names.emplace(key_text(document, keys[i], i),
                                document.text(texts[i]));
  }
  return optimizer;
}

std::string join_from(const std::vector<std::string>& path, size_t from) {
  return join_path(
      {},
      {path.begin() + static_cast<std::ptrdiff_t>(std::min(from, path.size())),
       path.end()});
}

class Builder {
 public:
  Builder(const Container& container, Id root, const std::string& prefix)
      : container_(container),
        document_(*container.document),
        prefix_(prefix),
        root_(root) {
    for (const char* key :
         {"model", "state_dict", "module", "model_state_dict", "model_state"})
      if (is_mapping(document_, root) && document_.find(root, key) != kNoId)
        model_keys_.emplace_back(key);
  }

  Tree build() {
    check_calls(container_);
    visit_tree(document_, root_, container_.path,
               [this](const Visit& visit, bool holds) {
                 return holds ? visit_holder(visit) : visit_object(visit);
               });
    leave_covered();
    return std::move(tree_);
  }

 private:
  // An attribute may be a parameter, too.
  void leave_covered() {
    if (tree_.loose_storages.empty()) return;
    std::unordered_set<uint32_t> covered;
    for (const NamedTensor& tensor : tree_.tensors)
      covered.insert(tensor.ref.storage);
    std::erase_if(tree_.loose_storages, [&](Id node) {
      const StorageUse* use = container_.storages.find(node);
      return use && covered.contains(use->storage);
    });
  }
  std::string name_of(const Visit& visit, std::string_view lone) const {
    std::string name = join_path(prefix_, visit.path);
    return name.empty() && visit.path.empty() ? std::string(lone) : name;
  }
  void add_problem(Problem::Severity severity, std::string kind,
                   std::string tensor, std::string message) {
    tree_.problems.push_back({severity, std::move(kind), container_.path,
                              std::move(tensor), std::move(message)});
  }
  std::string unique(std::string name) {
    const uint32_t count = ++names_[name];
    if (count == 1) return name;
    std::string other = fmt::format("{}#{}", name, count);
    while (names_.contains(other)) other += '#';
    names_[other] = 1;
    add_problem(Problem::Severity::kWarning, "equal_names", name,
                fmt::format("two values have the name {}; this one is listed "
                            "as {}",
                            text::printable(name), text::printable(other)));
    return other;
  }
  void add_object(const Visit& visit, Id node) {
    tree_.objects.push_back({name_of(visit, kLoneObject), node});
  }

  // A value without storages below it.
  Next visit_object(const Visit& visit) {
    if (visit.site == Site::kInside) return Next::kSkip;
    if (visit.site == Site::kRoot && is_mapping(document_, visit.node))
      return Next::kDescend;
    add_object(visit, visit.node);
    if (rebuild_of(document_, visit.node) == Rebuild::kMeta)
      add_problem(Problem::Severity::kNote, "meta_tensor",
                  name_of(visit, kLoneObject),
                  "a meta tensor has no data; it is kept as an object");
    return Next::kSkip;
  }

  Next visit_holder(const Visit& visit) {
    const Id node = visit.node;
    if (document_.is(node, Type::kPersistent)) {
      add_loose_storage(visit);
      return Next::kSkip;
    }
    // Its storages are found below.
    if (visit.attribute) return Next::kDescend;
    while (!optimizers_.empty() &&
           optimizers_.back().depth >= visit.path.size())
      optimizers_.pop_back();
    if (document_.is(node, Type::kCall) && !is_mapping(document_, node)) {
      if (add_tensor(visit)) return Next::kAttributes;
      add_object(visit, node);
      if (rebuild_of(document_, node) == Rebuild::kNested)
        add_nested_geometry(node);
    } else if (is_mapping(document_, node) && is_optimizer(document_, node)) {
      optimizers_.push_back(read_optimizer(document_, node, visit.path.size()));
    }
    return Next::kDescend;
  }

  void add_loose_storage(const Visit& visit) {
    tree_.loose_storages.push_back(visit.node);
    if (visit.site == Site::kInside) return;
    add_object(visit, visit.node);
    add_problem(Problem::Severity::kNote, "bare_storage",
                name_of(visit, kLoneObject),
                "a storage without a tensor; it is kept as an object");
  }
  void add_nested_geometry(Id node) {
    const Id args = document_.call(node).args;
    if (!document_.is(args, Type::kTuple)) return;
    const auto parts = document_.items(args);
    for (size_t i = 1; i < parts.size(); ++i)
      add_storages_below(document_, parts[i], tree_.loose_storages);
  }

  bool add_tensor(const Visit& visit) {
    std::string name = name_of(visit, kLoneTensor);
    auto ref = as_tensor(document_, visit.node, container_.storages, name);
    if (!ref) return false;
    NamedTensor tensor{.name = unique(std::move(name)),
                       .node = visit.node,
                       .ref = std::move(*ref),
                       .path = visit.path,
                       .kind = Kind::model,
                       .param = {},
                       .state = {}};
    set_kind(tensor);
    if (tensor.ref.quantizer != kNoId) {
      tree_.objects.push_back(
          {tensor.name + ".quantizer", tensor.ref.quantizer});
      add_storages_below(document_, tensor.ref.quantizer, tree_.loose_storages);
    }
    tree_.tensors.push_back(std::move(tensor));
    return true;
  }

  void set_kind(NamedTensor& tensor) const {
    const auto& path = tensor.path;
    if (!optimizers_.empty()) {
      const Optimizer& optimizer = optimizers_.back();
      tensor.kind = Kind::optim;
      const size_t at = optimizer.depth;
      if (at + 2 >= path.size() || path[at] != "state") return;
      const auto known = optimizer.names.find(path[at + 1]);
      tensor.param =
          known == optimizer.names.end() ? path[at + 1] : known->second;
      tensor.state = join_from(path, at + 2);
    } else if (!model_keys_.empty() && !path.empty() &&
               std::ranges::find(model_keys_, path[0]) == model_keys_.end()) {
      tensor.kind = Kind::other;
    }
  }

  const Container& container_;
  const Document& document_;
  const std::string& prefix_;
  Id root_;
  std::vector<std::string> model_keys_;
  std::vector<Optimizer> optimizers_;  // that enclose the visited value
  std::unordered_map<std::string, uint32_t> names_;
  Tree tree_;
};

}  // namespace

Tree walk(const Container& container, Id root, const std::string& prefix) {
  return Builder(container, root, prefix).build();
}

}  // namespace ckpt::torch
