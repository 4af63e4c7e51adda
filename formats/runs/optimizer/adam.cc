// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/optimizer/adam.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "ckpt/error.h"
#include "formats/runs/find/pattern.h"
#include "formats/runs/models/own_names.h"
#include "formats/runs/optimizer/group_names.h"
#include "formats/runs/optimizer/naming.h"
#include "lib/pickle/json.h"
#include "lib/text/format.h"
#include "models/wrapper.h"

namespace ckpt::runs {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;
using text::printable;

// The states of torch.optim.Adam and AdamW, in their order.
constexpr auto kAdamStates = std::to_array<std::string_view>(
    {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"});

constexpr std::string_view kParamGroups = "param_groups";
constexpr size_t kMostAdamGroups = 100'000;

// "optimizer_0.param_groups.0.lr": what is before the word, and what is after
// it.
struct GroupsName {
  std::string_view owner;
  std::string_view rest;
};
std::optional<GroupsName> group_name(std::string_view name) {
  for (size_t at = name.find(kParamGroups); at != name.npos;
       at = name.find(kParamGroups, at + 1)) {
    const size_t end = at + kParamGroups.size();
    if (at == 0 || name[at - 1] != '.') continue;
    if (end == name.size()) return GroupsName{name.substr(0, at - 1), {}};
    if (name[end] == '.')
      return GroupsName{name.substr(0, at - 1), name.substr(end + 1)};
  }
  return std::nullopt;
}

class AdamFinder {
 public:
  explicit AdamFinder(const Catalog& source) : source_(source) {}

  Adam find() {
    for (size_t t = 0; t < source_.tensors.size(); ++t)
      if (source_.tensors[t].kind == Kind::optim) add_state(t);
    if (adam_.states.empty()) return std::move(adam_);
    for (const auto& [param, states] : adam_.states)
      check_moments(param, states);
    for (const Object& object : source_.objects) add_object(object);
    settle();
    return std::move(adam_);
  }

 private:
  [[noreturn]] void refuse(const std::string& tensor,
                           const std::string& what) const {
    throw unfaithful_error({source_.path, printable(tensor)}, "{}", what)
        .with_hint(
            "--model-only converts the model; --to dcp keeps the optimizer as "
            "it is");
  }

  void add_state(size_t index) {
    const Tensor& tensor = source_.tensors[index];
    if (tensor.param.empty() || whole_number(tensor.param))
      throw unfaithful_error({source_.path, printable(tensor.name)},
                             "the state of a parameter that nothing names")
          .with_hint(
              "--assume-order says how the optimizer counts its parameters; "
              "--model-only converts the model");
    if (std::ranges::find(kAdamStates, tensor.state) == kAdamStates.end())
      refuse(tensor.name,
             "is state of an optimizer that is not Adam: no other "
             "trainer's Adam can take it");
    adam_.states[tensor.param][tensor.state] = index;
  }

  void check_moments(const std::string& param,
                     const std::map<std::string, size_t>& states) const {
    for (const char* state : {"step", "exp_avg", "exp_avg_sq"})
      if (!states.contains(state))
        refuse(param,
               fmt::format("has no {}: Adam does not go on without", state));
  }

  static bool is_empty_list(const Document& document, Id value) {
    return document.is(value, Type::kList) && document.items(value).empty();
  }

  Id import(const Object& object) {
    return adam_.document->import(*object.document, object.node);
  }

  void add_object(const Object& object) {
    const auto name = group_name(object.name);
    if (!name || !object.document) return;
    // An empty list stands where a writer of DCP had no groups to put.
    if (name->rest.empty() && is_empty_list(*object.document, object.node))
      return;
    if (owner_ && *owner_ != name->owner)
      throw unfaithful_error({source_.path, printable(object.name)},
                             "two optimizers: {} and {}", printable(*owner_),
                             printable(name->owner))
          .with_hint("--model-only converts the models");
    owner_ = std::string(name->owner);
    const Id value = import(object);
    if (name->rest.empty()) return add_list(value);
    const size_t dot = name->rest.find('.');
    if (const auto index = whole_number(name->rest.substr(0, dot))) {
      if (*index >= kMostAdamGroups) return;
      if (adam_.groups.size() <= *index) {
        adam_.groups.resize(*index + 1);
        lists_.resize(*index + 1, kNoId);
      }
      if (dot == name->rest.npos) return add_group(*index, value);
      return add_option(*index, name->rest.substr(dot + 1), value);
    }
    const size_t last = name->rest.rfind('.');
    if (last != name->rest.npos)
      own_[families::without_wrappers(std::string(name->rest.substr(0, last)))]
          .emplace_back(name->rest.substr(last + 1), value);
  }

  void add_list(Id list) {
    if (!adam_.document->is(list, Type::kList)) return;
    const size_t count = adam_.document->items(list).size();
    adam_.groups.resize(count);
    lists_.resize(count, kNoId);
    for (size_t i = 0; i < count; ++i)
      add_group(i, adam_.document->items(list)[i]);
  }

  void add_group(size_t index, Id dict) {
    const auto pairs = adam_.document->as_pairs(dict);
    for (size_t i = 0; pairs && i + 1 < pairs->size(); i += 2)
      if (adam_.document->is((*pairs)[i], Type::kString))
        add_option(index, adam_.document->text((*pairs)[i]), (*pairs)[i + 1]);
  }

  void add_option(size_t index, std::string_view key, Id value) {
    if (key == "params")
      lists_[index] = value;
    else if (key != "param_names")
      adam_.groups[index].options.emplace_back(key, value);
  }

  void settle() {
    if (!own_.empty()) return settle_own();
    if (adam_.groups.empty())
      refuse({}, "the optimizer's groups (lr, betas) are not there");
    if (!by_name() && !by_number() && !by_list()) {
      // FSDP1's units, DeepSpeed's partitions: they number something else.
      if (adam_.groups.size() != 1)
        refuse({}, fmt::format("{} groups of options, and nothing says which "
                               "parameters are in each",
                               adam_.groups.size()));
      for (const auto& [param, states] : adam_.states)
        adam_.groups[0].params.push_back(param);
    }
    take_prefix();
    for (AdamGroup& group : adam_.groups) take_other_names(group.params);
    check_groups();
  }

  // --rename has put the states' names, which are the model's, behind a
  // module's: "model.".
  void take_prefix() {
    std::set<std::string_view> params;
    for (const AdamGroup& group : adam_.groups)
      params.insert(group.params.begin(), group.params.end());
    const auto is_prefix = [&](std::string_view prefix) {
      return std::ranges::all_of(adam_.states, [&](const auto& state) {
        const std::string_view name = state.first;
        return name.starts_with(prefix) &&
               params.contains(name.substr(prefix.size()));
      });
    };
    const std::string& name = adam_.states.begin()->first;
    if (is_prefix("")) return;
    for (size_t dot = name.find('.'); dot != name.npos;
         dot = name.find('.', dot + 1)) {
      const std::string prefix = name.substr(0, dot + 1);
      if (!is_prefix(prefix)) continue;
      for (AdamGroup& group : adam_.groups)
        for (std::string& param : group.params) param = prefix + param;
      return;
    }
  }

  void take_other_names(std::vector<std::string>& params) const {
    params = names_of_states(params, [&](const std::string& name) {
      return adam_.states.contains(name);
    });
  }

  // {"params": ["model.norm.weight", …]}
  bool by_name() {
    const Document& document = *adam_.document;
    for (const Id list : lists_)
      if (!document.is(list, Type::kList) ||
          !std::ranges::all_of(document.items(list), [&](Id item) {
            return document.is(item, Type::kString);
          }))
        return false;
    for (size_t g = 0; g < adam_.groups.size(); ++g) {
      for (const Id item : document.items(lists_[g]))
        adam_.groups[g].params.push_back(
            families::without_wrappers(std::string(document.text(item))));
    }
    adam_.ordered = shows_order();
    return true;
  }

  // Whoever writes names without knowing their order sorts them.
  bool shows_order() const {
    const auto has_sorted = [](const AdamGroup& group) {
      return group.params.size() > 1 && std::ranges::is_sorted(group.params);
    };
    const auto is_unsorted = [](const AdamGroup& group) {
      return !std::ranges::is_sorted(group.params);
    };
    return std::ranges::any_of(adam_.groups, is_unsorted) ||
           std::ranges::none_of(adam_.groups, has_sorted);
  }

  // DeepSpeed and nanotron have the names in a list of their own.
  bool by_list() {
    if (!owner_) return false;
    auto names =
        names_of_groups(source_, *owner_ + ".", *adam_.document, lists_);
    if (!names) return false;
    for (size_t g = 0; g < adam_.groups.size(); ++g)
      adam_.groups[g].params = std::move(names->groups[g]);
    return true;
  }

  // Lightning's file: its nesting says which name each number got.
  bool by_number() {
    if (!source_.skeleton || !source_.skeleton->document || !owner_)
      return false;
    const Document& from = *source_.skeleton->document;
    Id state = source_.skeleton->root;
    std::string_view rest = *owner_;
    while (state != kNoId && !rest.empty()) {
      const std::string_view word = rest.substr(0, rest.find('.'));
      rest.remove_prefix(std::min(rest.size(), word.size() + 1));
      const auto index = whole_number(word);
      if (index && from.is(state, Type::kList))
        state = *index < from.items(state).size() ? from.items(state)[*index]
                                                  : kNoId;
      else
        state = from.find(state, word);
    }
    const auto names = names_in(from, from.find(state, "state"));
    for (size_t g = 0; g < adam_.groups.size(); ++g) {
      if (!adam_.document->is(lists_[g], Type::kList)) return false;
      for (const Id item : adam_.document->items(lists_[g])) {
        const auto number = adam_.document->as_int(item);
        const auto found = number ? names.find(*number) : names.end();
        if (found != names.end())
          adam_.groups[g].params.push_back(found->second);
      }
    }
    adam_.ordered = !names.empty();
    return adam_.ordered;
  }

  // {0: {"exp_avg": tensor, …}, …}: the parameters of the tensors.
  std::map<int64_t, std::string> names_in(const Document& from,
                                          Id states) const {
    std::map<int64_t, std::string> names;
    std::map<Id, std::string_view> tensors;
    for (const auto& [node, name] : source_.skeleton->tensors)
      tensors.emplace(node, name);
    constexpr std::string_view kEnding = ".exp_avg";
    const auto pairs = from.as_pairs(states);
    for (size_t i = 0; pairs && i + 1 < pairs->size(); i += 2) {
      const auto number = from.as_int((*pairs)[i]);
      const auto found = tensors.find(from.find((*pairs)[i + 1], "exp_avg"));
      if (number && found != tensors.end() && found->second.ends_with(kEnding))
        names.emplace(*number, found->second.substr(
                                   0, found->second.size() - kEnding.size()));
    }
    return names;
  }

  // torchtitan's parameters have their own options: those with equal options
  // form a group.
  void settle_own() {
    adam_.by_options = true;
    std::map<std::string, size_t> known;
    std::set<std::pair<size_t, std::string>> taken;
    for (auto& [before, options] : own_) {
      std::vector<std::string> params = {before};
      take_other_names(params);
      if (!adam_.states.contains(params[0])) continue;
      std::ranges::sort(options, {}, [](const auto& one) { return one.first; });
      std::string text;
      for (const auto& [key, value] : options)
        text += key + pickle::to_json(*adam_.document, value).dump() + "\n";
      const auto [group, fresh] = known.emplace(text, adam_.groups.size());
      if (fresh) adam_.groups.push_back({.params = {}, .options = options});
      // Two of its parameters may be one of the target's: experts' w1 and w3.
      auto& all = adam_.groups[group->second].params;
      for (std::string& param : params)
        if (taken.emplace(group->second, param).second)
          all.push_back(std::move(param));
    }
    check_groups();
  }

  // Parameters without state never had a gradient, or are not in this
  // checkpoint.
  void check_groups() const {
    std::set<std::string_view> all;
    for (const AdamGroup& group : adam_.groups)
      for (const std::string& param : group.params)
        if (!all.insert(param).second)
          refuse(param, "is in two groups of the optimizer");
    for (const auto& [param, states] : adam_.states)
      if (!all.contains(param))
        refuse(param, "is in no group of the optimizer");
  }

  const Catalog& source_;
  Adam adam_;
  std::optional<std::string> owner_;
  std::vector<Id> lists_;  // "params" of each group
  std::map<std::string, std::vector<std::pair<std::string, Id>>> own_;
};

}  // namespace

Adam find_adam(const Catalog& source) { return AdamFinder(source).find(); }

Id option(const AdamGroup& group, std::string_view name) {
  for (const auto& [key, value] : group.options)
    if (key == name) return value;
  return kNoId;
}

bool same_options(const Adam& adam, const AdamGroup& a, const AdamGroup& b,
                  std::string* differs) {
  std::set<std::string> keys;
  for (const AdamGroup* group : {&a, &b})
    for (const auto& [key, value] : group->options) keys.insert(key);
  const auto text = [&](const AdamGroup& group, const std::string& key) {
    const Id value = option(group, key);
    return value == kNoId ? "nothing"
                          : pickle::to_json(*adam.document, value).dump();
  };
  for (const std::string& key : keys) {
    if (text(a, key) == text(b, key)) continue;
    if (differs)
      *differs = fmt::format("{} is {} and {}", printable(key), text(a, key),
                             text(b, key));
    return false;
  }
  return true;
}

}  // namespace ckpt::runs
