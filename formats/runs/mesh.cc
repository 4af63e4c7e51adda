// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/mesh.h"

#include <algorithm>

#include "ckpt/error.h"
#include "containers/torch/file_plan.h"
#include "containers/torch/tensors.h"
#include "lib/text/format.h"

namespace ckpt::runs {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;
using text::printable;

// A state is a dict, or (None, dict of slots).
Id fields_of(const Document& document, Id state) {
  if (document.is(state, Type::kDict)) return state;
  if (!document.is(state, Type::kTuple)) return kNoId;
  for (const Id part : document.items(state))
    if (document.is(part, Type::kDict)) return part;
  return kNoId;
}

Id attribute(const Document& document, Id object, std::string_view name) {
  if (!document.is(object, Type::kCall)) return kNoId;
  return document.find(fields_of(document, document.call(object).state), name);
}

constexpr std::string_view kCarried[] = {
    "_device_type",     "device_type",      "_mesh_dim_names",
    "mesh_dim_names",   "_root_mesh",       "_thread_id",
    "_flatten_mapping", "_dim_group_names", "_dim_group_infos"};

}  // namespace

std::optional<DTensorNodes> find_dtensor(const Document& document, Id node) {
  if (!document.is_call(node, "torch._tensor", "_rebuild_from_type_v2"))
    return std::nullopt;
  const Id args = document.call(node).args;
  if (!document.is(args, Type::kTuple) || document.items(args).size() != 4)
    return std::nullopt;
  const Id type = document.items(args)[1];
  if (!document.is(type, Type::kGlobal) || document.text(type) != "DTensor")
    return std::nullopt;
  const Id state = fields_of(document, document.items(args)[3]);
  DTensorNodes nodes{document.find(state, "_local_tensor"),
                     document.find(state, "_spec")};
  if (nodes.local == kNoId || nodes.spec == kNoId) return std::nullopt;
  return nodes;
}

std::optional<MeshPlace> place_on_mesh(const Document& document, Id spec) {
  const auto is_list = [&](Id node) {
    return document.is(node, Type::kTuple) || document.is(node, Type::kList);
  };
  const Id placements = attribute(document, spec, "placements");
  const Id coordinate = attribute(document, attribute(document, spec, "mesh"),
                                  "_coordinate_on_dim");
  if (!is_list(placements) || !is_list(coordinate) ||
      document.items(placements).size() != document.items(coordinate).size())
    return std::nullopt;
  MeshPlace place;
  for (size_t m = 0; m < document.items(placements).size(); ++m) {
    const auto at = document.as_int(document.items(coordinate)[m]);
    const Id one = document.items(placements)[m];
    if (!at || *at < 0 || !document.is(one, Type::kCall)) return std::nullopt;
    const Id type = document.call(one).callable;
    const bool whole =
        document.is(type, Type::kGlobal) && document.text(type) == "Replicate";
    (whole ? place.replica : place.part).push_back(static_cast<uint64_t>(*at));
  }
  if (place.part.empty()) return std::nullopt;
  return place;
}

Placement placement_of(const Document& document, Id spec, const Shape& shape,
                       const std::string& path) {
  const auto refuse = [&](std::string_view why) {
    throw unfaithful_error({path, {}}, "a DTensor {}", why)
        .with_hint("--to dcp holds it for any number of ranks");
  };
  const Id tuple = attribute(document, spec, "placements");
  if (!document.is(tuple, Type::kTuple) && !document.is(tuple, Type::kList))
    refuse("without placements");
  if (document.items(tuple).size() != 1)
    refuse("of a mesh of several dimensions");
  const Id one = document.items(tuple)[0];
  if (!document.is(one, Type::kCall)) refuse("of an unknown placement");
  const Id type = document.call(one).callable;
  const std::string_view name =
      document.is(type, Type::kGlobal) ? document.text(type) : "";
  if (name == "Replicate") return {};
  const auto dim = document.as_int(attribute(document, one, "dim"));
  const int64_t rank = static_cast<int64_t>(shape.size());
  if (name != "Shard" || !dim || *dim < -rank || *dim >= rank)
    refuse("that is neither sharded over a dimension nor whole");
  return {.shard = true,
          .dim = static_cast<uint64_t>(*dim < 0 ? *dim + rank : *dim)};
}

void MeshMaker::refuse(const std::string& what) const {
  throw unfaithful_error({path_, {}}, "DeviceMesh: {}", what)
      .with_hint("--to dcp writes model and optimizer for any ranks");
}

// Copies an object with another state: `make` returns a field's new value.
template <class Make>
Id MeshMaker::remade(Id node, Make make) {
  const pickle::Call call = from_.call(node);
  const Id state = fields_of(from_, call.state);
  const auto pairs = from_.as_pairs(state);
  if (!pairs) refuse("a state of no fields");
  const Id callable = to_.import(from_, call.callable);
  const Id args = to_.import(from_, call.args);
  std::vector<Id> fields;
  for (size_t i = 0; i + 1 < pairs->size(); i += 2) {
    fields.push_back(to_.import(from_, (*pairs)[i]));
    fields.push_back(make(from_.text((*pairs)[i]), (*pairs)[i + 1]));
  }
  Id made = to_.add_container(Type::kDict, fields);
  if (state != from_.call(node).state)
    made = to_.add_container(Type::kTuple, {to_.add_none(), made});
  pickle::Call copy;
  copy.how = from_.call(node).how;
  copy.callable = callable;
  copy.args = args;
  copy.state = made;
  return to_.add_call(copy);
}

Id MeshMaker::list_like(Id node, const std::vector<Id>& items) {
  return to_.add_container(
      from_.is(node, Type::kList) ? Type::kList : Type::kTuple, items);
}

// 2, (2,) -> 3, (3,). torch 2.12 and later omit an axis of size 1.
Id MeshMaker::sizes(Id node, uint64_t size, bool squeeze) {
  const Id number = to_.add_int(static_cast<int64_t>(size));
  if (from_.as_int(node)) return number;
  if (!from_.is(node, Type::kTuple) || from_.items(node).size() > 1)
    refuse("a layout that is not known");
  return to_.add_container(Type::kTuple,
                           squeeze ? std::vector<Id>{} : std::vector{number});
}

Id MeshMaker::axis(Id node) {
  return remade(node, [&](std::string_view key, Id value) {
    if (key == "shape") return sizes(value, ranks_, ranks_ == 1);
    if (key == "stride") return sizes(value, 1, ranks_ == 1);
    refuse("a layout that is not known");
  });
}

Id MeshMaker::layout(Id node) {
  if (!from_.is(node, Type::kCall)) refuse("a layout that is not known");
  return remade(node, [&](std::string_view key, Id value) {
    if (key == "shape") return sizes(value, ranks_, false);
    if (key == "stride") return sizes(value, 1, false);
    if (key != "axes" || !from_.is(value, Type::kTuple) ||
        from_.items(value).size() != 1)
      refuse("a layout that is not known");
    const Id one = axis(from_.items(value)[0]);
    return to_.add_container(Type::kTuple, {one});
  });
}

// Without recursion: a pickle nests as deep as it likes, and may hold itself.
void MeshMaker::note_storages(Id node) {
  std::vector<Id> below{node};
  std::set<Id> seen;
  while (!below.empty()) {
    const Id id = below.back();
    below.pop_back();
    if (!seen.insert(id).second) continue;
    if (from_.is(id, Type::kPersistent)) {
      storages_.insert(id);
    } else if (from_.is(id, Type::kTuple)) {
      const auto items = from_.items(id);
      below.insert(below.end(), items.begin(), items.end());
    } else if (from_.is(id, Type::kCall)) {
      below.push_back(from_.call(id).args);
    }
  }
}

// A tensor of all rank numbers, of 32 bits as torch makes it.
Id MeshMaker::rank_map(Id node) {
  if (!from_.is(node, Type::kCall))
    refuse("a map of ranks that is not a tensor");
  note_storages(node);
  std::string content;
  for (int32_t rank = 0; rank < static_cast<int32_t>(ranks_); ++rank)
    content.append(reinterpret_cast<const char*>(&rank), sizeof rank);
  const Id zero = to_.add_int(0);
  const Id count = to_.add_int(ranks_);
  const std::vector<Id> args = {
      torch::add_inline_storage(to_, DType::i32, std::move(content)),
      zero,
      to_.add_container(Type::kTuple, {count}),
      to_.add_container(Type::kTuple, {to_.add_int(1)}),
      to_.add_bool(false),
      torch::add_ordered_dict(to_)};
  return to_.add_call(to_.add_global("torch._utils", "_rebuild_tensor_v2"),
                      to_.add_container(Type::kTuple, args));
}

Id MeshMaker::mesh(Id node) {
  if (const auto known = made_.find(node); known != made_.end())
    return known->second;
  if (!from_.is(node, Type::kCall)) refuse("is not an object");
  const Id made = remade(node, [&](std::string_view key, Id value) -> Id {
    if (key == "_rank") return to_.add_int(rank_);
    if (key == "_coordinate_on_dim")
      return list_like(value, {to_.add_int(rank_)});
    if (key == "_flatten_rank_map" || key == "_flatten_mesh_list") {
      std::vector<Id> all;
      for (uint32_t rank = 0; rank < ranks_; ++rank)
        all.push_back(to_.add_int(rank));
      return list_like(value, all);
    }
    if (key == "_rank_map" || key == "mesh") return rank_map(value);
    if (key == "_layout") return layout(value);
    if (key == "_hash") return to_.add_none();  // torch makes it on demand
    if (std::ranges::find(kCarried, key) == std::end(kCarried))
      refuse("has a field " + printable(key) + " that is not known");
    return to_.import(from_, value);
  });
  made_.emplace(node, made);
  return made;
}

Id MeshMaker::spec(Id node) {
  if (const auto known = made_.find(node); known != made_.end())
    return known->second;
  if (!from_.is(node, Type::kCall)) refuse("a spec that is not an object");
  const Id made = remade(node, [&](std::string_view key, Id value) {
    if (key == "mesh") return mesh(value);
    if (key == "_hash") return to_.add_none();
    return to_.import(from_, value);
  });
  made_.emplace(node, made);
  return made;
}

}  // namespace ckpt::runs
