// SPDX-License-Identifier: Apache-2.0
#include "formats/dcp/subclass.h"

#include "ckpt/error.h"
#include "containers/torch/tensors.h"
#include "lib/pickle/value.h"
#include "lib/text/format.h"

namespace ckpt::dcp {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;
using text::printable;

// Subclasses nested in subclasses: torchao nests two.
constexpr int kMostDepth = 8;

// The arguments of the outer call: function, class, inner arguments, state.
std::optional<std::vector<Id>> outer_arguments(const Document& document,
                                               Id node) {
  if (!document.is_call(node, "torch._tensor", "_rebuild_from_type_v2"))
    return std::nullopt;
  const Id tuple = document.call(node).args;
  if (!document.is(tuple, Type::kTuple)) return std::nullopt;
  const auto items = document.items(tuple);
  if (items.size() != 4 ||
      !document.is_global(items[0], "torch._utils",
                          "_rebuild_wrapper_subclass") ||
      !document.is(items[1], Type::kGlobal) ||
      !document.is(items[2], Type::kTuple))
    return std::nullopt;
  return std::vector<Id>(items.begin(), items.end());
}

// Attributes of an instance: a dict, or a pair of a dict and the __slots__.
std::vector<Id> attributes(const Document& document, Id state) {
  std::vector<Id> all;
  const auto add = [&](Id dict) {
    if (const auto pairs = document.as_pairs(dict))
      all.insert(all.end(), pairs->begin(), pairs->end());
  };
  if (document.is(state, Type::kTuple))
    for (const Id one : document.items(state)) add(one);
  else
    add(state);
  return all;
}

void collect(const torch::Container& item, Id node, const std::string& name,
             int depth, std::vector<Tensor>& parts) {
  const Document& document = *item.document;
  const auto outer = outer_arguments(document, node);
  if (!outer || depth > kMostDepth) return;
  const std::vector<Id> pairs = attributes(document, (*outer)[3]);
  for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
    if (!document.is(pairs[i], Type::kString)) continue;
    const std::string part = name + "." + std::string(document.text(pairs[i]));
    if (const auto ref =
            torch::as_tensor(document, pairs[i + 1], item.storages, part)) {
      parts.push_back(torch::make_tensor(part, *ref));
      parts.back().kind = Kind::other;
    } else {
      collect(item, pairs[i + 1], part, depth + 1, parts);
    }
  }
}

// Collects the parts' names, without their places.
void collect_names(const Document& document, Id node, const std::string& name,
                   int depth, std::vector<std::string>& names) {
  const auto outer = outer_arguments(document, node);
  if (!outer || depth > kMostDepth) return;
  const std::vector<Id> pairs = attributes(document, (*outer)[3]);
  for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
    if (!document.is(pairs[i], Type::kString)) continue;
    const std::string part = name + "." + std::string(document.text(pairs[i]));
    const Id value = pairs[i + 1];
    if (document.callable_name(value).starts_with("torch._utils _rebuild_"))
      names.push_back(part);
    else
      collect_names(document, value, part, depth + 1, names);
  }
}

}  // namespace

std::optional<Subclass> subclass_of(const Document& document, Id node) {
  const auto outer = outer_arguments(document, node);
  if (!outer) return std::nullopt;
  const auto inner = document.items((*outer)[2]);
  if (inner.size() < 3) return std::nullopt;
  const auto dtype = torch::as_dtype(document, inner[1]);
  const auto sizes = torch::as_ints(document, inner[2]);
  if (!dtype || !sizes) return std::nullopt;
  Subclass found;
  found.class_name = std::string(document.module((*outer)[1])) + "." +
                     std::string(document.text((*outer)[1]));
  found.dtype = *dtype;
  for (const int64_t size : *sizes) {
    if (size < 0) return std::nullopt;
    found.shape.push_back(static_cast<uint64_t>(size));
  }
  if (inner.size() > 7 && document.is(inner[7], Type::kBool))
    found.requires_grad = document.boolean(inner[7]);
  return found;
}

std::vector<Tensor> parts_of(const torch::Container& item, Id node,
                             const std::string& name) {
  std::vector<Tensor> parts;
  collect(item, node, name, 0, parts);
  return parts;
}

std::optional<Subclass> subclass_of(const Object& object) {
  if (!object.document || object.bytes == 0 ||
      object.node != object.document->root())
    return std::nullopt;
  return subclass_of(*object.document, object.node);
}

std::unordered_map<uint32_t, uint32_t> find_parts(const Catalog& source) {
  std::unordered_map<uint32_t, uint32_t> parts;
  std::unordered_map<std::string_view, uint32_t> by_name;
  for (uint32_t o = 0; o < source.objects.size(); ++o) {
    const Object& object = source.objects[o];
    const auto subclass = subclass_of(object);
    if (!subclass) continue;
    if (by_name.empty())
      for (uint32_t t = 0; t < source.tensors.size(); ++t)
        by_name.emplace(source.tensors[t].name, t);
    std::vector<std::string> names;
    collect_names(*object.document, object.node, object.name, 0, names);
    size_t kept = 0;
    for (const std::string& name : names)
      if (const auto found = by_name.find(name); found != by_name.end()) {
        parts.emplace(found->second, o);
        ++kept;
      }
    if (kept != 0 && kept != names.size())
      throw unfaithful_error(
          {source.path, printable(object.name)},
          "{} of its {} parts are selected: it is one {}, which is written "
          "whole",
          kept, names.size(), printable(subclass->class_name))
          .with_hint(fmt::format("select or rename all of '{}*' alike",
                                 printable(object.name)));
  }
  return parts;
}

}  // namespace ckpt::dcp
