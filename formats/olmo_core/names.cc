// SPDX-License-Identifier: Apache-2.0
#include "formats/olmo_core/names.h"

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "formats/dcp/kinds.h"
#include "formats/olmo_core/olmo_core.h"
#include "lib/text/number.h"

namespace ckpt::olmo_core {
namespace {

constexpr std::string_view kModel = "model.";
constexpr std::string_view kOptim = "optim.";
constexpr std::string_view kState = "state.";
constexpr std::string_view kGroups = "param_groups.";
constexpr std::string_view kMain = "main";
constexpr auto kDirectStates =
    std::to_array<std::string_view>({"exp_avg", "exp_avg_sq", "step"});

bool is_optimizer(std::string_view name) {
  return name.starts_with(kState) || name.starts_with(kGroups);
}

// The prefix to remove from a key. The model's objects keep theirs: they are
// not parameters.
std::string_view prefix_of(std::string_view key, bool is_tensor) {
  if (key.starts_with(kOptim) && is_optimizer(key.substr(kOptim.size())))
    return kOptim;
  if (is_tensor && key.starts_with(kModel) && key.size() > kModel.size())
    return kModel;
  return {};
}

// Calls see(name, whether it is a tensor) for all entries.
template <class See>
void each_name(dcp::Metadata& metadata, See see) {
  for (dcp::TensorEntry& entry : metadata.tensors) see(entry.name, true);
  for (dcp::BytesEntry& entry : metadata.bytes) see(entry.name, false);
}

// True if names without prefixes say as much as the keys.
bool can_shorten(dcp::Metadata& metadata) {
  std::unordered_set<std::string_view> names;
  bool any = false;
  bool clear = true;
  each_name(metadata, [&](const std::string& key, bool is_tensor) {
    const std::string_view prefix = prefix_of(key, is_tensor);
    const std::string_view name = std::string_view(key).substr(prefix.size());
    any = any || !prefix.empty();
    // A parameter named like optimizer state, or the reverse.
    if (prefix != kOptim && is_optimizer(name)) clear = false;
    if (!names.insert(name).second) clear = false;
  });
  return any && clear;
}

// The path of an entry, for changing in place.
std::vector<dcp::PathElement>* path_of(dcp::Metadata& metadata,
                                       const std::string& key) {
  if (!metadata.planner) return nullptr;
  const auto found = metadata.planner->find(key);
  return found == metadata.planner->end() ? nullptr : &found->second;
}

void shorten_one(dcp::Metadata& metadata, std::string& key, bool is_tensor) {
  const std::string_view prefix = prefix_of(key, is_tensor);
  if (prefix.empty()) return;
  std::string name = key.substr(prefix.size());
  if (auto* path = path_of(metadata, key)) {
    const auto* first = std::get_if<std::string>(&path->front());
    // "model", without the dot
    if (path->size() > 1 && first != nullptr &&
        *first == prefix.substr(0, prefix.size() - 1))
      path->erase(path->begin());
    else
      *path = {name};
    auto node = metadata.planner->extract(key);
    node.key() = name;
    metadata.planner->insert(std::move(node));
  }
  key = std::move(name);
}

std::string_view last_word(std::string_view name) {
  return name.substr(name.rfind('.') + 1);
}
std::string_view without_last(std::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == name.npos ? std::string_view() : name.substr(0, dot);
}

bool is_direct(const dcp::Metadata& metadata) {
  return std::ranges::any_of(
      metadata.tensors, [](const dcp::TensorEntry& entry) {
        return last_word(entry.name) == kMain && entry.size.size() == 1 &&
               entry.name.size() > kMain.size() + 1;
      });
}

using ByName = std::unordered_map<std::string_view, const Tensor*>;

// Takes the longest beginning of "<param>.<state>" that is a parameter; if
// there is none, all except the last word.
void split_state(Tensor& tensor, const ByName& params) {
  const std::string_view rest =
      std::string_view(tensor.name).substr(kState.size());
  std::string_view param = without_last(rest);
  while (!param.empty() && !params.contains(param)) param = without_last(param);
  if (param.empty()) param = without_last(rest);
  if (param.empty()) return;
  tensor.param = param;
  tensor.state = rest.substr(param.size() + 1);
}

void set_direct_kinds(Catalog& catalog) {
  std::unordered_set<std::string> mains;
  for (const Tensor& tensor : catalog.tensors)
    if (last_word(tensor.name) == kMain)
      mains.emplace(without_last(tensor.name));
  for (Tensor& tensor : catalog.tensors) {
    const std::string_view word = last_word(tensor.name);
    const std::string param(without_last(tensor.name));
    tensor.kind = Kind::other;
    if (word == kMain || tensor.name.starts_with("model_buffer.")) {
      tensor.kind = Kind::model;
    } else if (mains.contains(param) &&
               std::ranges::find(kDirectStates, word) != kDirectStates.end()) {
      tensor.kind = Kind::optim;
      tensor.param = param;
      tensor.state = word;
    }
  }
}

// The number of a group; nothing for a parameter's name.
std::optional<int64_t> group_number(std::string_view word) {
  const auto value = text::number(word, INT64_MAX);
  return value ? std::optional(static_cast<int64_t>(*value)) : std::nullopt;
}

// "state.<param>.exp_avg" -> ("optim", "state", param, "exp_avg"), or in the
// flattened form ("optim", the whole name).
std::vector<dcp::PathElement> optimizer_path(const std::string& name,
                                             std::string_view param,
                                             bool flattened) {
  std::vector<dcp::PathElement> path{std::string("optim")};
  // (Whoever renamed the tensor may not have renamed the parameter.)
  if (name.starts_with(kState)) {
    const std::string_view rest = std::string_view(name).substr(kState.size());
    if (!rest.starts_with(param) || rest.size() <= param.size() + 1 ||
        rest[param.size()] != '.')
      param = without_last(rest);
  }
  if (!flattened && name.starts_with(kState) && !param.empty()) {
    path.emplace_back(std::string("state"));
    path.emplace_back(std::string(param));
    path.emplace_back(name.substr(kState.size() + param.size() + 1));
    return path;
  }
  if (!flattened && name.starts_with(kGroups)) {
    const std::string_view rest = std::string_view(name).substr(kGroups.size());
    const std::string_view group = rest.substr(0, rest.find('.'));
    const auto number = group_number(group);
    if (number && group.size() < rest.size()) {
      path.emplace_back(std::string("param_groups"));
      path.emplace_back(*number);
      path.emplace_back(std::string(rest.substr(group.size() + 1)));
      return path;
    }
  }
  path.emplace_back(name);
  return path;
}

}  // namespace

Names shorten(dcp::Metadata& metadata) {
  Names names;
  if (can_shorten(metadata)) {
    names.dialect = kDialect;
    names.kinds.reserve(metadata.tensors.size());
    for (const dcp::TensorEntry& entry : metadata.tensors) {
      const std::string_view prefix = prefix_of(entry.name, true);
      names.kinds.push_back(prefix == kModel   ? Kind::model
                            : prefix == kOptim ? Kind::optim
                                               : Kind::other);
    }
    each_name(metadata, [&](std::string& key, bool is_tensor) {
      shorten_one(metadata, key, is_tensor);
    });
    return names;
  }
  const bool prefixed =
      std::ranges::any_of(metadata.tensors, [](const dcp::TensorEntry& entry) {
        return !prefix_of(entry.name, true).empty();
      });
  if (!prefixed && is_direct(metadata)) names.dialect = kDirectDialect;
  return names;
}

void set_kinds(Catalog& catalog, const Names& names) {
  catalog.dialect = names.dialect;
  if (names.dialect == kDirectDialect) return set_direct_kinds(catalog);
  if (names.dialect != kDialect) return dcp::set_kinds(catalog);
  ByName params;
  for (size_t t = 0; t < catalog.tensors.size(); ++t) {
    Tensor& tensor = catalog.tensors[t];
    tensor.kind = names.kinds.at(t);
    if (tensor.kind == Kind::model) params.emplace(tensor.name, &tensor);
  }
  for (Tensor& tensor : catalog.tensors)
    if (tensor.kind == Kind::optim && tensor.name.starts_with(kState))
      split_state(tensor, params);
}

Key key_of(const Tensor& tensor, bool flattened) {
  const std::string& name = tensor.name;
  if (tensor.kind == Kind::model)
    return {std::string(kModel) + name, {std::string("model"), name}};
  if (tensor.kind == Kind::optim && is_optimizer(name))
    return {std::string(kOptim) + name,
            optimizer_path(name, tensor.param, flattened)};
  return {name, {name}};
}

Key key_of_object(const std::string& name, bool flattened) {
  if (is_optimizer(name))
    return {std::string(kOptim) + name, optimizer_path(name, {}, flattened)};
  if (name.starts_with(kModel) && name.size() > kModel.size())
    return {name, {std::string("model"), name.substr(kModel.size())}};
  return {name, {name}};
}

bool is_flattened(const Catalog& catalog) {
  return std::ranges::none_of(catalog.objects, [](const Object& object) {
    return object.name == "param_groups.0.params";
  });
}

}  // namespace ckpt::olmo_core
