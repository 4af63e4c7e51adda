// SPDX-License-Identifier: Apache-2.0
#include "formats/olmo_core/v1/review.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "ckpt/error.h"
#include "formats/olmo_core/review.h"
#include "formats/olmo_core/v1/v1.h"
#include "lib/pickle/value.h"
#include "lib/text/format.h"

namespace ckpt::olmo_core::v1 {
namespace {

using text::printable;

// Generation 2 puts no underscores before a state's name.
void rename_state(Tensor& tensor) {
  if (tensor.param.empty() || tensor.state.empty())
    throw unfaithful_error({{}, printable(tensor.name)},
                           "is optimizer state, but not of a parameter that "
                           "is known by name")
        .with_hint("leave the optimizer out: --model-only");
  if (tensor.state.starts_with("__")) tensor.state.erase(0, 2);
  tensor.name = std::string(kState) + tensor.param + ".__" + tensor.state;
}

// In another container's copy of such a checkpoint, each group is a value of
// its own. Named as other containers name theirs, they are accepted.
void rename_groups(Catalog& source) {
  const auto is_count = [](const Object& object) {
    return object.name == kGroupCount;
  };
  if (std::ranges::none_of(source.objects, is_count)) return;
  for (Object& object : source.objects)
    if (const auto index = group_of(object.name))
      object.name = fmt::format("param_groups.{}", *index);
  std::erase_if(source.objects, [&](const Object& object) {
    return is_count(object) || object.name == kStateKeys;  // made again
  });
}

// Of a dict: the list of its parameters' names.
pickle::Id names_of(const pickle::Document& group, pickle::Id node) {
  for (const char* key : {"_param_names", "param_names"})
    if (const pickle::Id names = group.find(node, key); names != pickle::kNoId)
      return names;
  return pickle::kNoId;
}

}  // namespace

void split_groups(Catalog& source) {
  if (std::ranges::find(source.objects, kGroupCount, &Object::name) ==
      source.objects.end())
    return;
  load_objects(source);
  std::vector<Object> kept;
  bool all = true;
  for (Object& object : source.objects) {
    const auto index = group_of(object.name);
    const auto pairs =
        index ? object.document->as_pairs(object.node) : std::nullopt;
    const pickle::Id names =
        pairs ? names_of(*object.document, object.node) : pickle::kNoId;
    all &= !index || names != pickle::kNoId;
    if (names == pickle::kNoId) {
      kept.push_back(std::move(object));
      continue;
    }
    const pickle::Document& group = *object.document;
    for (size_t i = 0; i + 1 < pairs->size(); i += 2) {
      const pickle::Id key = (*pairs)[i];
      if (!group.is(key, pickle::Type::kString) || (*pairs)[i + 1] == names)
        continue;
      const std::string_view option = group.text(key);
      kept.push_back({.name = fmt::format("param_groups.{}.{}", *index, option),
                      .document = object.document,
                      .node = option == "params" ? names : (*pairs)[i + 1]});
    }
  }
  source.objects = std::move(kept);
  if (!all) return;
  std::erase_if(source.objects, [](const Object& object) {
    return object.name == kGroupCount || object.name == kStateKeys;
  });
}

Catalog review_v1(Catalog source) {
  if (source.format == kFormat) return source;
  rename_groups(source);
  source = review_names(std::move(source));
  std::unordered_map<std::string, std::string> renamed;
  for (Tensor& tensor : source.tensors) {
    if (tensor.kind != Kind::optim) continue;
    const std::string before = tensor.name;
    rename_state(tensor);
    if (tensor.name != before) renamed.emplace(before, tensor.name);
  }
  if (!source.skeleton) return source;
  for (auto& [node, name] : source.skeleton->tensors) {
    const auto found = renamed.find(name);
    if (found != renamed.end()) name = found->second;
  }
  return source;
}

}  // namespace ckpt::olmo_core::v1
