// SPDX-License-Identifier: Apache-2.0
#include "api/edit/parts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "ckpt/ckpt.h"
#include "ckpt/error.h"
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

// Where in a document's dicts a dotted name is. Each dict is looked through
// once: a name's every word could be a key of a million others.
class Nesting {
 public:
  explicit Nesting(const Skeleton& skeleton)
      : document_(*skeleton.document), root_(skeleton.root) {}

  struct Place {
    size_t depth = 0;     // how much of the name are keys, with their dots
    bool dotted = false;  // the rest is one key: "layers.0.weight"
  };
  // 6 of "model.layers.0.w" where only "model" is a dict's key.
  Place place_of(std::string_view name) {
    size_t end = 0;
    const Keys* keys = &keys_of(root_);
    for (size_t dot; (dot = name.find('.', end)) != name.npos; end = dot + 1) {
      const auto found = keys->dicts.find(name.substr(end, dot - end));
      if (found == keys->dicts.end()) break;
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
    const auto pairs = document_.as_pairs(dict);
    for (size_t i = 0; pairs && i + 1 < pairs->size(); i += 2) {
      const Id key = (*pairs)[i], value = (*pairs)[i + 1];
      if (!document_.is(key, pickle::Type::kString)) continue;
      const std::string_view text = document_.text(key);
      if (is_dict(value))
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

  const Document& document_;
  const Id root_;
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

// A dict in a state dict is a module of it.
bool is_within(const std::string& inner, const std::string& outer) {
  return !outer.empty() && inner.size() > outer.size() &&
         inner.starts_with(outer) && inner[outer.size()] == '.';
}

void join_modules(std::vector<Group>& groups) {
  for (Group& group : groups) {
    const auto outer = std::ranges::find_if(groups, [&](const Group& other) {
      return other.dotted && is_within(group.part.name, other.part.name);
    });
    if (outer == groups.end()) continue;
    outer->part.tensors += group.part.tensors;
    outer->part.parameters += group.part.parameters;
    outer->part.bytes += group.part.bytes;
    group.part.tensors = 0;
  }
  std::erase_if(groups,
                [](const Group& group) { return group.part.tensors == 0; });
}

std::vector<std::string> texts_of(const std::vector<StateDict>& parts) {
  std::vector<std::string> texts;
  texts.reserve(parts.size());
  for (const StateDict& part : parts) texts.push_back(part_text(part));
  return texts;
}

bool is_called(const StateDict& part, const std::string& name) {
  return part.name == name || part.name.ends_with('.' + name);
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
  const auto exact = std::ranges::find(parts, name, &StateDict::name);
  if (exact != parts.end()) return *exact;
  const auto like = [&](const StateDict& part) {
    return is_called(part, name);
  };
  const auto found = std::ranges::find_if(parts, like);
  if (found != parts.end() && std::ranges::count_if(parts, like) == 1)
    return *found;
  std::vector<std::string> names;
  names.reserve(parts.size());
  for (const StateDict& part : parts) names.push_back(part.name);
  const std::string near = text::nearest(name, names);
  throw unfaithful_error(
      {catalog.path, {}}, "--part {}: {}; there are {}", printable(name),
      found == parts.end() ? "no part has this name" : "several parts end so",
      printable(fmt::format("{}", fmt::join(texts_of(parts), ", "))))
      .with_hint(near.empty()
                     ? "`ckpt inspect` lists them with their sizes"
                     : fmt::format("did you mean --part {}?", printable(near)));
}

// The rest of a name in the part; nothing if it is not there.
std::optional<std::string> within(const std::string& name,
                                  const StateDict& part) {
  if (part.name.empty()) return name;
  if (!is_within(name, part.name)) return std::nullopt;
  return name.substr(part.name.size() + 1);
}

// Makes the part all of the catalog's model; optimizer state stays. Returns
// what else was there.
std::vector<std::string> leave_others(Catalog& catalog, const StateDict& part,
                                      const std::vector<StateDict>& parts) {
  const auto is_in = [&](const Tensor& tensor) {
    return within(tensor.name, part) &&
           (!part.name.empty() ||
            std::ranges::none_of(parts, [&](const StateDict& other) {
              return is_within(tensor.name, other.name);
            }));
  };
  std::vector<std::string> left;
  std::erase_if(catalog.tensors, [&](Tensor& tensor) {
    if (tensor.kind == Kind::optim) return false;
    tensor.kind = Kind::model;
    if (is_in(tensor)) return false;
    left.push_back(tensor.name);
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

std::string part_text(const StateDict& part) {
  return part.name.empty() ? "the top" : part.name;
}

std::string keep_part(Catalog& catalog, const std::string& name) {
  const std::vector<StateDict> parts = parts_of(catalog);
  const StateDict part = find_part(catalog, parts, name);
  const size_t before = catalog.tensors.size();
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

std::optional<std::string> keep_only_part(Catalog& catalog) {
  const std::vector<StateDict> parts = parts_of(catalog);
  if (parts.empty() || (parts.size() == 1 && parts[0].name.empty()))
    return std::nullopt;
  if (parts.size() > 1)
    throw unfaithful_error(
        {catalog.path, {}}, "{} models are in it: {}", parts.size(),
        printable(fmt::format("{}", fmt::join(texts_of(parts), ", "))))
        .with_hint(fmt::format("--part {} takes one; --to torch keeps all",
                               printable(parts.back().name)));
  const StateDict& part = parts[0];
  if (formats::traits_of(catalog.format).flat_objects &&
      part.tensors < catalog.tensors.size())
    return std::nullopt;
  std::string line =
      fmt::format("the model is at \"{}\"", printable(part.name));
  const auto left = leave_others(catalog, part, parts);
  if (!left.empty())
    line +=
        fmt::format("; {} beside it: {}", text::counted(left.size(), "tensor"),
                    printable(left[0]));
  return line;
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
