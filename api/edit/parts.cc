// SPDX-License-Identifier: Apache-2.0
#include "api/edit/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "api/edit/model_part.h"
#include "ckpt/ckpt.h"
#include "ckpt/error.h"
#include "containers/hf/numbered.h"
#include "containers/torch/walk.h"
#include "convert/whole/models_of.h"
#include "formats/component_tree.h"
#include "formats/traits.h"
#include "lib/pickle/value.h"
#include "lib/text/format.h"
#include "lib/text/suggest.h"

namespace ckpt::library {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using text::printable;

// Where in a document's dicts and lists a dotted name is. Each is looked
// through once: a name's every word could be a key of a million others.
class Nesting {
 public:
  explicit Nesting(const Skeleton& skeleton)
      : document_(*skeleton.document), root_(skeleton.root) {}

  struct Place {
    size_t depth = 0;  // how much of the name are keys, with their dots
    // The rest is one key, "layers.0.weight", or a name in an nn.Module.
    bool dotted = false;
  };
  // 6 of "model.layers.0.w" where only "model" is a dict's key.
  Place place_of(std::string_view name) {
    if (is_module(root_)) return {0, true};
    size_t end = 0;
    const Keys* keys = &keys_of(root_);
    for (size_t dot; (dot = name.find('.', end)) != name.npos; end = dot + 1) {
      const auto found = keys->dicts.find(name.substr(end, dot - end));
      if (found == keys->dicts.end()) break;
      if (is_module(found->second)) return {dot + 1, true};
      keys = &keys_of(found->second);
    }
    return {end, keys->dotted.contains(name.substr(end))};
  }

 private:
  struct Keys {
    std::unordered_map<std::string_view, Id> dicts;
    std::unordered_set<std::string_view> dotted;
  };

  const Keys& keys_of(Id dict) {
    const auto [it, first] = known_.try_emplace(dict);
    if (!first) return it->second;
    if (is_list(dict)) {
      const auto items = document_.items(dict);
      for (size_t i = 0; i < items.size(); ++i)
        if (leads_on(items[i]))
          it->second.dicts.emplace(numbers_.emplace_back(std::to_string(i)),
                                   items[i]);
      return it->second;
    }
    const auto pairs = document_.as_pairs(dict);
    for (size_t i = 0; pairs && i + 1 < pairs->size(); i += 2) {
      const Id key = (*pairs)[i], value = (*pairs)[i + 1];
      if (!document_.is(key, pickle::Type::kString)) continue;
      const std::string_view text = document_.text(key);
      if (leads_on(value))
        it->second.dicts.emplace(text, value);
      else if (text.find('.') != text.npos)
        it->second.dotted.insert(text);
    }
    return it->second;
  }

  bool is_dict(Id node) const {
    return document_.is(node, pickle::Type::kDict) ||
           document_.is_call(node, "collections", "OrderedDict") ||
           document_.is_call(node, "collections", "defaultdict");
  }

  bool is_module(Id node) const {
    return document_.is(node, pickle::Type::kCall) &&
           document_.call(node).state != kNoId &&
           torch::module_parts(document_, document_.call(node).state);
  }

  bool leads_on(Id node) const {
    return is_dict(node) || is_list(node) || is_module(node);
  }

  bool is_list(Id node) const {
    return document_.is(node, pickle::Type::kList) ||
           document_.is(node, pickle::Type::kTuple);
  }

  const Document& document_;
  const Id root_;
  std::deque<std::string> numbers_;  // the keys of lists
  std::unordered_map<Id, Keys> known_;
};

struct Group {
  StateDict part;
  bool dotted = false;  // it has a module's names: "conv1.weight"
  std::unordered_set<uint32_t> ties;

  void add(const Tensor& tensor) {
    ++part.tensors;
    if (tensor.tie != 0 && !ties.insert(tensor.tie).second) return;
    part.parameters += element_count(tensor.shape).value_or(0);
    part.bytes += byte_size(tensor);
  }
};

std::vector<Group> groups_of(const Catalog& catalog) {
  std::vector<Group> groups;
  std::unordered_map<std::string_view, size_t> places;
  Nesting nesting(*catalog.skeleton);
  for (const Tensor& tensor : catalog.tensors) {
    if (tensor.kind == Kind::optim) continue;
    const std::string_view name = tensor.name;
    const auto [depth, dotted] = nesting.place_of(name);
    const std::string_view keys = name.substr(0, depth == 0 ? 0 : depth - 1);
    const auto [it, first] = places.emplace(keys, groups.size());
    if (first) groups.emplace_back().part.name = keys;
    Group& group = groups[it->second];
    group.add(tensor);
    group.dotted = group.dotted || dotted;
  }
  return groups;
}

// The outermost of the parts that a dotted name is in; nothing if in none.
// Parts may be as many as tensors, so the name is asked and not each part.
template <class Value>
const Value* outermost(const std::unordered_map<std::string, Value>& parts,
                       const std::string& name) {
  for (size_t dot = name.find('.'); dot != name.npos;
       dot = name.find('.', dot + 1)) {
    const auto found = parts.find(name.substr(0, dot));
    if (found != parts.end()) return &found->second;
  }
  return nullptr;
}

// A dict in a state dict is a module of it.
void join_modules(std::vector<Group>& groups) {
  std::unordered_map<std::string, size_t> state_dicts;
  for (size_t g = 0; g < groups.size(); ++g)
    if (groups[g].dotted && !groups[g].part.name.empty())
      state_dicts.emplace(groups[g].part.name, g);
  for (Group& group : groups) {
    const size_t* outer = outermost(state_dicts, group.part.name);
    if (!outer) continue;
    groups[*outer].part.tensors += group.part.tensors;
    groups[*outer].part.parameters += group.part.parameters;
    groups[*outer].part.bytes += group.part.bytes;
    group.part.tensors = 0;
  }
  std::erase_if(groups,
                [](const Group& group) { return group.part.tensors == 0; });
}

std::vector<std::string> words_of(const std::vector<StateDict>& parts) {
  std::vector<std::string> words;
  words.reserve(parts.size());
  for (const StateDict& part : parts) words.push_back(part_word(part));
  return words;
}

const StateDict& find_part(const Catalog& catalog,
                           const std::vector<StateDict>& parts,
                           const std::string& name) {
  if (parts.empty())
    throw unfaithful_error({catalog.path, {}},
                           "--part {}: there is no state dict in another value "
                           "here",
                           printable(name))
        .with_hint("--keys GLOB takes tensors by their names");
  const auto exact = std::ranges::find(parts, name, part_word);
  if (exact != parts.end()) return *exact;
  const auto ends_so = [&](const StateDict& part) {
    return part.name.ends_with('.' + name);
  };
  const auto found = std::ranges::find_if(parts, ends_so);
  if (found != parts.end() && std::ranges::count_if(parts, ends_so) == 1)
    return *found;
  const std::vector<std::string> words = words_of(parts);
  const std::string near = text::nearest(name, words);
  throw unfaithful_error(
      {catalog.path, {}}, "--part {}: {}; there are {}", printable(name),
      found == parts.end() ? "no part has this name" : "several parts end so",
      formats::list_some(words))
      .with_hint(near.empty()
                     ? "`ckpt inspect` lists them with their sizes"
                     : fmt::format("did you mean --part {}?", printable(near)));
}

// The rest of a name in the part; nothing if it is not there.
std::optional<std::string> within(const std::string& name,
                                  const StateDict& part) {
  if (part.name.empty()) return name;
  const bool is = name.size() > part.name.size() &&
                  name.starts_with(part.name) && name[part.name.size()] == '.';
  return is ? std::optional(name.substr(part.name.size() + 1)) : std::nullopt;
}

// Makes the part all of the catalog's model; optimizer state stays. Returns
// what else was there.
std::vector<Tensor> leave_others(Catalog& catalog, const StateDict& part,
                                 const std::vector<StateDict>& parts) {
  std::unordered_map<std::string, bool> below;  // parts, if this is the top
  for (const StateDict& other : parts)
    if (part.name.empty() && !other.name.empty())
      below.emplace(other.name, true);
  const auto is_in = [&](const Tensor& tensor) {
    return within(tensor.name, part) && !outermost(below, tensor.name);
  };
  std::vector<Tensor> left;
  std::erase_if(catalog.tensors, [&](Tensor& tensor) {
    if (tensor.kind == Kind::optim) return false;
    tensor.kind = Kind::model;
    if (is_in(tensor)) return false;
    left.push_back(tensor);
    return true;
  });
  rename_tensors(catalog, [&](const std::string& name) {
    return within(name, part).value_or(name);
  });
  catalog.skeleton.reset();
  return left;
}

}  // namespace

std::vector<StateDict> parts_of(const Catalog& catalog) {
  if (!catalog.skeleton || !catalog.skeleton->document || catalog.run)
    return {};
  std::vector<Group> groups = groups_of(catalog);
  join_modules(groups);
  // {"encoder": {"weight": …}, "decoder": {"weight": …}}: modules or models?
  const bool any = std::ranges::any_of(groups, &Group::dotted);
  if (!any && groups.size() != 1) return {};
  std::vector<StateDict> parts;
  for (Group& group : groups)
    if (group.dotted || !any) parts.push_back(std::move(group.part));
  return parts;
}

std::vector<StateDict> choices_of(const Catalog& catalog) {
  const auto models = families::models_of(catalog);
  if (models.empty()) return parts_of(catalog);
  std::vector<Group> groups(models.size());
  for (const Tensor& tensor : catalog.tensors)
    if (const size_t at = formats::component_of(models, tensor.name);
        at < groups.size() && tensor.kind != Kind::optim)
      groups[at].add(tensor);
  std::vector<StateDict> choices;
  for (size_t i = 0; i < models.size(); ++i) {
    choices.push_back(std::move(groups[i].part));
    choices.back().name = families::word_of(models[i]);
  }
  return choices;
}

std::string part_word(const StateDict& part) {
  return part.name.empty() ? "." : part.name;
}

std::string keep_part(Catalog& catalog, const std::string& name) {
  if (const auto models = families::models_of(catalog); !models.empty())
    return keep_model(catalog, models, name);
  const size_t before = catalog.tensors.size();
  const std::vector<StateDict> parts = parts_of(catalog);
  const StateDict part = find_part(catalog, parts, name);
  leave_others(catalog, part, parts);
  std::erase_if(catalog.tensors, [](const Tensor& tensor) {
    return tensor.kind == Kind::optim;
  });
  std::erase_if(catalog.objects, [&](Object& object) {
    const auto rest = within(object.name, part);
    if (!rest || part.name.empty()) return true;
    object.name = *rest;
    return false;
  });
  return fmt::format("--part {}: {} of {} tensors", printable(name),
                     catalog.tensors.size(), before);
}

OnlyPart keep_only_part(Catalog& catalog) {
  const std::vector<StateDict> parts = parts_of(catalog);
  if (parts.empty() || (parts.size() == 1 && parts[0].name.empty())) return {};
  if (parts.size() > 1)
    throw unfaithful_error({catalog.path, {}}, "{} models are in it: {}",
                           parts.size(), formats::list_some(words_of(parts)))
        .with_hint(fmt::format("--part {} takes one; a .pt file keeps all",
                               printable(part_word(parts.back()))));
  const StateDict& part = parts[0];
  if (formats::traits_of(catalog.format).flat_objects &&
      part.tensors < catalog.tensors.size())
    return {};
  OnlyPart found{fmt::format("the model is at \"{}\"", printable(part.name)),
                 {}};
  // A number of the training loop is no loss; a head is.
  std::vector<std::string> left;
  for (const Tensor& tensor : leave_others(catalog, part, parts))
    if (element_count(tensor.shape) != 1) left.push_back(tensor.name);
  if (!left.empty())
    found.left_out =
        fmt::format("left out: {} not in \"{}\": {} (a .pt file keeps all)",
                    text::counted(left.size(), "tensor"), printable(part.name),
                    formats::list_some(left));
  return found;
}

bool name_as_only_part(Catalog& catalog) {
  const std::vector<StateDict> parts = parts_of(catalog);
  if (parts.size() != 1 || parts[0].name.empty()) return false;
  std::unordered_set<std::string_view> others;
  for (const Tensor& tensor : catalog.tensors)
    if (!within(tensor.name, parts[0])) others.insert(tensor.name);
  const auto is_taken = [&](const Tensor& tensor) {
    const auto name = within(tensor.name, parts[0]);
    return name && others.contains(*name);
  };
  if (std::ranges::any_of(catalog.tensors, is_taken)) return false;
  for (Tensor& tensor : catalog.tensors)
    if (tensor.kind == Kind::model && !within(tensor.name, parts[0]))
      tensor.kind = Kind::other;
  rename_tensors(catalog, [&](const std::string& name) {
    return within(name, parts[0]).value_or(name);
  });
  return true;
}

}  // namespace ckpt::library
