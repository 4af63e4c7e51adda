// SPDX-License-Identifier: Apache-2.0
#include "formats/olmo_core/v1/state_dict.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "containers/torch/tensor_nodes.h"
#include "formats/olmo_core/v1/optimizer.h"
#include "formats/olmo_core/v1/v1.h"
#include "lib/pickle/value.h"
#include "lib/text/format.h"

namespace ckpt::olmo_core::v1 {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;

constexpr std::string_view kStates = "state";
constexpr std::string_view kGroups = "param_groups";

class Nester {
 public:
  explicit Nester(Catalog source)
      : source_(std::move(source)), document_(std::make_shared<Document>()) {}

  Catalog nest() {
    read_groups();
    if (groups_.empty() || !is_clear()) return std::move(source_);
    const Id root = document_->add_container(Type::kDict);
    for (const Tensor& tensor : source_.tensors)
      if (!id_of(tensor)) add(root, document_->add_string(tensor.name), tensor);
    document_->set(root, kStates, states());
    const Id groups = document_->add_container(Type::kList);
    for (const auto& [index, group] : groups_)
      document_->append(groups, options(*group));
    document_->set(root, kGroups, groups);
    document_->set_root(root);
    set_objects(groups);
    source_.skeleton = Skeleton{.document = document_,
                                .root = root,
                                .tensors = std::move(nodes_),
                                .storages = {}};
    source_.assumptions.push_back(
        "optimizer state goes by the numbers of the parameters, as torch's "
        "state dicts do: state.<number>.<state>");
    return std::move(source_);
  }

 private:
  void read_groups() {
    for (const Object& object : source_.objects)
      if (const auto index = group_of(object.name)) groups_[*index] = &object;
    int64_t next = 0;
    for (const auto& [index, group] : groups_) {
      for (std::string& name : parameter_names(*group))
        ids_.emplace(std::move(name), next++);
    }
  }

  // True if no other tensor is where the state will be.
  bool is_clear() const {
    return std::ranges::none_of(source_.tensors, [&](const Tensor& tensor) {
      return tensor.name == kStates || tensor.name == kGroups ||
             (!id_of(tensor) && tensor.name.starts_with(kState));
    });
  }

  std::optional<int64_t> id_of(const Tensor& tensor) const {
    if (tensor.kind != Kind::optim || tensor.state.empty()) return std::nullopt;
    const auto found = ids_.find(tensor.param);
    if (found == ids_.end()) return std::nullopt;
    return found->second;
  }

  void add(Id dict, Id key, const Tensor& tensor) {
    const Id node = tensor_nodes_.add();
    document_->set(dict, key, node);
    nodes_.emplace_back(node, tensor.name);
  }

  Id states() {
    std::map<int64_t, std::vector<Tensor*>> by_id;
    for (Tensor& tensor : source_.tensors)
      if (const auto id = id_of(tensor)) by_id[*id].push_back(&tensor);
    const Id all = document_->add_container(Type::kDict);
    for (auto& [id, tensors] : by_id) {
      const Id states = document_->add_container(Type::kDict);
      for (Tensor* tensor : tensors) {
        tensor->name = fmt::format("{}{}.{}", kState, id, tensor->state);
        add(states, document_->add_string(tensor->state), *tensor);
      }
      document_->set(all, document_->add_int(id), states);
    }
    return all;
  }

  // A group without the names, which are not an option of torch's.
  Id options(const Object& group) {
    const Document& from = *group.document;
    const Id dict = document_->add_container(Type::kDict);
    const auto pairs = from.as_pairs(group.node);
    for (size_t i = 0; pairs && i + 1 < pairs->size(); i += 2) {
      const Id key = (*pairs)[i];
      if (from.is(key, Type::kString) &&
          (from.text(key) == "_param_names" || from.text(key) == "param_names"))
        continue;
      document_->set(dict, document_->import(from, key),
                     document_->import(from, (*pairs)[i + 1]));
    }
    return dict;
  }

  // The nesting has the count and the names of states.
  void set_objects(Id groups) {
    std::erase_if(source_.objects, [](const Object& object) {
      return group_of(object.name) || object.name == kGroupCount ||
             object.name == kStateKeys;
    });
    source_.objects.push_back(
        {.name = std::string(kGroups), .document = document_, .node = groups});
  }

  Catalog source_;
  std::shared_ptr<Document> document_;
  torch::TensorNodes tensor_nodes_{*document_};
  std::map<uint32_t, const Object*> groups_;
  std::unordered_map<std::string, int64_t> ids_;  // of parameters
  std::vector<std::pair<uint32_t, std::string>> nodes_;
};

}  // namespace

Catalog as_state_dict(Catalog source) {
  const bool any = std::ranges::any_of(
      source.tensors, [](const Tensor& t) { return t.kind == Kind::optim; });
  if (source.format != kFormat || !any) return source;
  return Nester(std::move(source)).nest();
}

}  // namespace ckpt::olmo_core::v1
