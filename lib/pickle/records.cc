// SPDX-License-Identifier: Apache-2.0
// Records: instances without the dict of their fields. An index has few shapes,
// each a million times.
#include <algorithm>

#include "lib/pickle/dict.h"
#include "lib/pickle/value.h"

namespace ckpt::pickle {

Record Document::record(Id id) const {
  if (!is_record(id)) throw_bad_type(id, "record");
  const RecordIds ids = nodes_[id].payload.record;
  const Shape& shape = shapes_[ids.shape];
  return {shape.names, {children_.data() + ids.first, shape.names.size()}};
}

// Equal short texts are one value, so different ids are different names.
bool Document::are_names(std::span<const Id> names) const {
  for (size_t i = 0; i < names.size(); ++i) {
    const Node& node = at(names[i]);
    if (node.type != Type::kString || node.count > kLongestShared) return false;
    for (size_t k = 0; k < i; ++k)
      if (names[k] == names[i]) return false;
  }
  return true;
}

std::optional<uint32_t> Document::shape_of(Id callable,
                                           std::span<const Id> names) {
  for (uint32_t i = 0; i < shapes_.size(); ++i)
    if (shapes_[i].callable == callable &&
        std::ranges::equal(shapes_[i].names, names))
      return i;
  if (shapes_.size() == kMostShapes || !are_names(names)) return std::nullopt;
  shapes_.push_back({callable, {names.begin(), names.end()}});
  return static_cast<uint32_t>(shapes_.size() - 1);
}

Id Document::add_record(Id callable, std::span<const Id> names,
                        std::span<const Id> values) {
  const auto shape = shape_of(callable, names);
  if (!shape || children_.size() > UINT32_MAX) return kNoId;
  add_items(Type::kTuple, {});  // the arguments that call() shows
  const size_t first = children_.extend(values.size());
  std::ranges::copy(values, children_.data() + first);
  const Id id = add_node(
      Type::kCall, callable,
      {.record = {.first = static_cast<uint32_t>(first), .shape = *shape}});
  nodes_[id].room = kRecord;
  ++spared_;  // the dict
  return id;
}

}  // namespace ckpt::pickle
