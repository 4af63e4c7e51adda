// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "ckpt/error.h"
#include "formats/olmo_core/v1/review.h"
#include "formats/olmo_core/v1/v1.h"
#include "lib/pickle/json.h"
#include "lib/pickle/value.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::olmo_core::v1 {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;
using text::printable;

constexpr std::string_view kWord = "param_groups";
constexpr std::string_view kParams = "params";

struct Value {
  const Document* document = nullptr;
  Id node = kNoId;
};

struct Group {
  std::vector<std::pair<std::string, Value>> options;  // without params
  std::vector<std::string> names;
};

// The names of parameters, if the value is a list of strings.
std::vector<std::string> texts(const Value& value) {
  std::vector<std::string> names;
  if (!value.document->is(value.node, Type::kList)) return names;
  for (const Id item : value.document->items(value.node)) {
    if (!value.document->is(item, Type::kString)) return {};
    names.emplace_back(value.document->text(item));
  }
  return names;
}

class GroupMaker {
 public:
  explicit GroupMaker(const Catalog& source) : source_(source) {
    for (const Tensor& tensor : source.tensors) {
      if (tensor.kind != Kind::optim) continue;
      states_.insert(tensor.state);
      if (params_.insert(tensor.param).second) order_.push_back(tensor.param);
    }
  }

  std::vector<Object> make() {
    for (const Object& object : source_.objects) take(object);
    join_flattened();
    check();
    std::vector<Object> objects;
    auto add = [&](std::string name, auto fill) {
      auto document = std::make_shared<Document>();
      const Id node = fill(*document);
      document->set_root(node);
      objects.push_back({.name = std::move(name),
                         .document = std::move(document),
                         .node = node});
    };
    add(std::string(kGroupCount), [&](Document& document) {
      return document.add_int(static_cast<int64_t>(groups_.size()));
    });
    int64_t id = 0;
    for (const auto& [index, group] : groups_) {
      const Group& g = group;
      add(fmt::format("{}{}", kGroup, objects.size() - 1),
          [&](Document& document) { return encode(document, g, id); });
    }
    add(std::string(kStateKeys), [&](Document& document) {
      const Id list = document.add_container(Type::kList);
      for (const std::string& state : states_)
        document.append(list, document.add_string(state));
      return list;
    });
    return objects;
  }

 private:
  void take(const Object& object) {
    std::string_view name = object.name;
    const Value value{object.document.get(), object.node};
    const size_t at = name.find(kWord);
    if (at == name.npos || (at > 0 && name[at - 1] != '.')) return;
    name.remove_prefix(at + kWord.size());
    if (name.empty()) return take_list(value);
    if (name[0] != '.') return;
    name.remove_prefix(1);
    const size_t dot = name.rfind('.');
    if (dot == name.npos) {
      if (const auto index = text::number(name)) take_dict(*index, value);
      return;
    }
    const std::string_view owner = name.substr(0, dot);
    const std::string option(name.substr(dot + 1));
    if (const auto index = text::number(owner);
        index && !params_.contains(std::string(owner)))
      set_option(groups_[*index], option, value);
    else
      flattened_[std::string(owner)].emplace_back(option, value);
  }

  void take_list(const Value& value) {
    if (!value.document->is(value.node, Type::kList)) return;
    uint64_t index = 0;
    for (const Id item : value.document->items(value.node))
      take_dict(index++, {value.document, item});
  }
  void take_dict(uint64_t index, const Value& value) {
    const auto pairs = value.document->as_pairs(value.node);
    if (!pairs) return;
    Group& group = groups_[index];
    for (size_t i = 0; i + 1 < pairs->size(); i += 2)
      if (value.document->is((*pairs)[i], Type::kString))
        set_option(group, std::string(value.document->text((*pairs)[i])),
                   {value.document, (*pairs)[i + 1]});
  }

  // torch's own list of names is called param_names.
  static void set_option(Group& group, const std::string& option,
                         const Value& value) {
    const bool names = option == kParams || option == "param_names" ||
                       option == "_param_names";
    if (!names) return group.options.emplace_back(option, value), void();
    std::vector<std::string> found = texts(value);
    if (!found.empty()) group.names = std::move(found);
  }

  // Options stored per parameter: parameters with equal ones are a group, in
  // the order of their states.
  void join_flattened() {
    std::map<std::string, uint64_t> known;
    uint64_t next = groups_.empty() ? 0 : groups_.rbegin()->first + 1;
    for (const std::string& param : order_) {
      const auto found = flattened_.find(param);
      if (found == flattened_.end()) continue;
      std::map<std::string, std::string> spelled;
      for (const auto& [option, value] : found->second)
        spelled[option] =
            pickle::to_json(*value.document, value.node)
                .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
      std::string key;
      for (const auto& [option, text] : spelled)
        key.append(option).append("=").append(text).append("\n");
      const auto [group, fresh] = known.try_emplace(key, next);
      if (fresh) {
        ++next;
        groups_[group->second].options = found->second;
      }
      groups_[group->second].names.push_back(param);
    }
  }

  // Checks that each parameter with state is in one group.
  void check() const {
    std::unordered_set<std::string> named;
    for (const auto& [index, group] : groups_)
      for (const std::string& name : group.names)
        if (!named.insert(name).second)
          throw unfaithful_error({source_.path, printable(name)},
                                 "is in two groups of the optimizer");
    for (const std::string& param : order_)
      if (!named.contains(param))
        throw unfaithful_error({source_.path, printable(param)},
                               "has optimizer state, but no group of "
                               "param_groups has it by name: its options are "
                               "not known")
            .with_hint("leave the optimizer out: --model-only");
  }

  // The options, the ids, the names; ids count through all groups.
  static Id encode(Document& document, const Group& group, int64_t& id) {
    const Id dict = document.add_container(Type::kDict);
    for (const auto& [option, value] : group.options)
      document.set(dict, option, document.import(*value.document, value.node));
    const Id params = document.add_container(Type::kList);
    const Id names = document.add_container(Type::kList);
    for (const std::string& name : group.names) {
      document.append(params, document.add_int(id++));
      document.append(names, document.add_string(name));
    }
    document.set(dict, kParams, params);
    document.set(dict, "_param_names", names);
    return dict;
  }

  const Catalog& source_;
  std::vector<std::string> order_;  // parameters with state
  std::unordered_set<std::string> params_;
  std::set<std::string> states_;
  std::map<uint64_t, Group> groups_;
  std::unordered_map<std::string, std::vector<std::pair<std::string, Value>>>
      flattened_;
};

}  // namespace

std::vector<Object> make_groups(const Catalog& source) {
  return GroupMaker(source).make();
}

}  // namespace ckpt::olmo_core::v1
