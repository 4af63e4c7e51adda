// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/optimizer/group_names.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>

#include "formats/runs/models/own_names.h"
#include "formats/runs/optimizer/naming.h"
#include "models/wrapper.h"

namespace ckpt::runs {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;
using NameList = std::vector<std::string>;

constexpr std::string_view kGroupsObject = "param_groups";
constexpr std::string_view kShapesObject = "param_shapes";
constexpr std::string_view kNamesObject = "names";

// The object `word` of what the groups belong to.
const Object* beside(const Catalog& source, std::string_view owner,
                     std::string_view word) {
  const auto found =
      std::ranges::find_if(source.objects, [&](const Object& object) {
        const std::string_view name = object.name;
        return object.document && name.ends_with(word) &&
               owner.starts_with(name.substr(0, name.size() - word.size()));
      });
  return found == source.objects.end() ? nullptr : &*found;
}

// number -> names
std::map<int64_t, NameList> in_shapes(const Object& object) {
  const Document& document = *object.document;
  std::map<int64_t, NameList> found;
  if (!document.is(object.node, Type::kList)) return found;
  for (const Id vector : document.items(object.node)) {
    NameList& names = found[static_cast<int64_t>(found.size())];
    const auto pairs = document.as_pairs(vector);
    for (size_t i = 0; pairs && i + 1 < pairs->size(); i += 2)
      if (document.is((*pairs)[i], Type::kString))
        names.emplace_back(document.text((*pairs)[i]));
  }
  return found;
}

std::map<int64_t, NameList> in_names(const Object& object) {
  const Document& document = *object.document;
  std::map<int64_t, NameList> found;
  const auto pairs = document.as_pairs(object.node);
  for (size_t i = 0; pairs && i + 1 < pairs->size(); i += 2)
    if (const auto number = document.as_int((*pairs)[i]);
        number && document.is((*pairs)[i + 1], Type::kString))
      found[*number] = {std::string(document.text((*pairs)[i + 1]))};
  return found;
}

// The "params" of each group; nothing if that is no list of groups.
std::optional<std::vector<Id>> params_in(const Object& object) {
  const Document& document = *object.document;
  if (!document.is(object.node, Type::kList)) return std::nullopt;
  std::vector<Id> lists;
  for (const Id group : document.items(object.node)) {
    lists.push_back(document.find(group, "params"));
    if (!document.is(lists.back(), Type::kList)) return std::nullopt;
  }
  return lists;
}

std::string behind_prefix(const std::string& param,
                          const std::function<bool(const std::string&)>& has) {
  for (size_t at = param.find('.'); at != param.npos;
       at = param.find('.', at + 1))
    if (std::string rest = param.substr(at + 1); has(rest)) return rest;
  return param;
}

bool are_all(const std::set<std::string_view>& params,
             const std::vector<NameList>& groups) {
  std::set<std::string_view> seen;
  for (const NameList& group : groups)
    for (const std::string& name : group)
      if (!seen.insert(name).second) return false;
  return std::ranges::includes(seen, params);
}

}  // namespace

std::optional<GroupNames> names_of_groups(const Catalog& source,
                                          std::string_view owner,
                                          const Document& document,
                                          std::span<const Id> numbers) {
  const Object* const shapes = beside(source, owner, kShapesObject);
  const Object* const names =
      shapes ? nullptr : beside(source, owner, kNamesObject);
  if (!shapes && !names) return std::nullopt;
  const auto known = shapes ? in_shapes(*shapes) : in_names(*names);
  GroupNames result;
  result.of_vectors = shapes != nullptr;
  for (const Id list : numbers) {
    NameList& group = result.groups.emplace_back();
    if (!document.is(list, Type::kList)) return std::nullopt;
    for (const Id item : document.items(list)) {
      const auto number = document.as_int(item);
      const auto found = number ? known.find(*number) : known.end();
      if (found == known.end()) return std::nullopt;
      std::ranges::copy(found->second, std::back_inserter(group));
    }
  }
  return result;
}

NameList names_of_states(const NameList& params,
                         const std::function<bool(const std::string&)>& has) {
  NameList now;
  for (const std::string& before : params) {
    const std::string param =
        has(before) ? before : families::without_wrappers(before);
    NameList names;
    if (!has(param)) names = names_of_other(param);
    // From one trainer's names to another's there are two steps.
    for (size_t i = names.size(); i-- > 0;)
      if (!has(names[i]))
        std::ranges::copy(names_of_other(names[i]), std::back_inserter(names));
    std::erase_if(names, [&](const std::string& name) { return !has(name); });
    if (names.empty()) names = {has(param) ? param : behind_prefix(param, has)};
    for (const std::string& name : names)
      if (std::ranges::find(now, name) == now.end()) now.push_back(name);
  }
  return now;
}

void put_names_in_groups(Catalog& source) {
  std::set<std::string_view> params;
  for (const Tensor& tensor : source.tensors)
    if (tensor.kind == Kind::optim) params.insert(tensor.param);
  const auto is_groups = [](const Object& object) {
    const std::string_view name = object.name;
    return object.document && name.ends_with(kGroupsObject) &&
           name.size() > kGroupsObject.size() &&
           name[name.size() - kGroupsObject.size() - 1] == '.';
  };
  const auto object = std::ranges::find_if(source.objects, is_groups);
  if (object == source.objects.end() || params.empty() ||
      std::ranges::count_if(source.objects, is_groups) != 1)
    return;
  const auto lists = params_in(*object);
  if (!lists) return;
  const Document& from = *object->document;
  auto names = names_of_groups(
      source,
      std::string_view(object->name)
          .substr(0, object->name.size() - kGroupsObject.size()),
      from, *lists);
  if (!names) return;
  for (NameList& group : names->groups) {
    group = names_of_states(
        group, [&](const std::string& name) { return params.contains(name); });
    // nanotron's order is not that of the model its names become: sorted names
    // claim none.
    if (!names->of_vectors) std::ranges::sort(group);
  }
  if (!are_all(params, names->groups)) return;
  auto document = std::make_shared<Document>();
  std::unordered_map<Id, Id> substitutes;
  for (size_t g = 0; g < lists->size(); ++g) {
    const Id list = document->add_container(Type::kList);
    for (const std::string& name : names->groups[g])
      document->append(list, document->add_string(name));
    substitutes[(*lists)[g]] = list;
  }
  object->node = document->import(from, object->node, substitutes);
  object->document = std::move(document);
  object->name = "optimizer." + std::string(kGroupsObject);
}

}  // namespace ckpt::runs
