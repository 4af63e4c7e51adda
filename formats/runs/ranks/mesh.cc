// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/ranks/mesh.h"

#include <algorithm>

#include "ckpt/error.h"
#include "containers/torch/file_plan.h"
#include "containers/torch/tensors.h"
#include "formats/runs/find/pattern.h"
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

bool is_list(const Document& document, Id node) {
  return document.is(node, Type::kTuple) || document.is(node, Type::kList);
}

constexpr std::string_view kCarried[] = {"_device_type", "device_type",
                                         "_root_mesh", "_thread_id",
                                         "_flatten_mapping"};
constexpr std::string_view kAllRanks = "0";  // the name of the first group

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
  const Id placements = attribute(document, spec, "placements");
  const Id coordinate = attribute(document, attribute(document, spec, "mesh"),
                                  "_coordinate_on_dim");
  if (!is_list(document, placements) || !is_list(document, coordinate) ||
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
  const auto type_of = [&](Id one) -> std::string_view {
    if (!document.is(one, Type::kCall)) refuse("of an unknown placement");
    const Id type = document.call(one).callable;
    return document.is(type, Type::kGlobal) ? document.text(type) : "";
  };
  const Id tuple = attribute(document, spec, "placements");
  if (!is_list(document, tuple) || document.items(tuple).size() == 0)
    refuse("without placements");
  const auto items = document.items(tuple);
  for (size_t dim = 0; dim + 1 < items.size(); ++dim)
    if (type_of(items[dim]) != "Replicate")
      refuse("that is cut over several dimensions of its mesh");
  const Id last = items[items.size() - 1];
  const std::string_view name = type_of(last);
  if (name == "Replicate") return {};
  const auto dim = document.as_int(attribute(document, last, "dim"));
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

Dims MeshMaker::shape() const {
  if (grid_.hybrid()) return {grid_.replicas, grid_.shards};
  return {grid_.shards};
}

Dims MeshMaker::coordinate() const {
  if (grid_.hybrid()) return {grid_.replica_of(rank_), grid_.part_of(rank_)};
  return {rank_};
}

// The ranks of this rank's group along a dimension of the mesh.
std::vector<uint32_t> MeshMaker::ranks_along(size_t dim) const {
  std::vector<uint32_t> ranks;
  for (uint32_t rank = 0; rank < grid_.ranks(); ++rank)
    if (!grid_.hybrid() ||
        (dim == 0 ? grid_.part_of(rank) == grid_.part_of(rank_)
                  : grid_.replica_of(rank) == grid_.replica_of(rank_)))
      ranks.push_back(rank);
  return ranks;
}

// 2, (2,) -> 3, (3,), (2, 3).
Id MeshMaker::sizes(Id node, const Dims& sizes) {
  std::vector<Id> numbers;
  for (const uint64_t size : sizes)
    numbers.push_back(to_.add_int(static_cast<int64_t>(size)));
  if (from_.as_int(node) && numbers.size() == 1) return numbers[0];
  if (!from_.as_int(node) && !from_.is(node, Type::kTuple))
    refuse("a layout that is not known");
  return to_.add_container(Type::kTuple, numbers);
}

// torch 2.12 and later omit an axis of size 1.
Id MeshMaker::axis(Id node, size_t dim) {
  return remade(node, [&](std::string_view key, Id value) {
    if (!from_.is(value, Type::kTuple) || from_.items(value).size() > 1)
      refuse("a layout that is not known");
    if (grid_.ranks() == 1) return sizes(value, {});
    if (key == "shape") return sizes(value, {shape()[dim]});
    if (key == "stride") return sizes(value, {row_major_strides(shape())[dim]});
    refuse("a layout that is not known");
  });
}

Id MeshMaker::layout(Id node) {
  if (!from_.is(node, Type::kCall)) refuse("a layout that is not known");
  return remade(node, [&](std::string_view key, Id value) {
    if (key == "shape") return sizes(value, shape());
    if (key == "stride") return sizes(value, row_major_strides(shape()));
    if (key != "axes" || !from_.is(value, Type::kTuple) ||
        from_.items(value).size() == 0)
      refuse("a layout that is not known");
    std::vector<Id> axes;
    for (size_t dim = 0; dim < shape().size(); ++dim)
      axes.push_back(axis(from_.items(value)[0], dim));
    return to_.add_container(Type::kTuple, axes);
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

// A tensor of all rank numbers, of 32 bits as torch makes it: `flat`, or of the
// mesh's shape.
Id MeshMaker::rank_map(Id node, bool flat) {
  if (!from_.is(node, Type::kCall))
    refuse("a map of ranks that is not a tensor");
  note_storages(node);
  std::string content;
  for (int32_t rank = 0; rank < static_cast<int32_t>(grid_.ranks()); ++rank)
    content.append(reinterpret_cast<const char*>(&rank), sizeof rank);
  const Shape shape = flat ? Shape{grid_.ranks()} : this->shape();
  const Id zero = to_.add_int(0);
  const std::vector<Id> args = {
      torch::add_inline_storage(to_, DType::i32, std::move(content)),
      zero,
      torch::add_int_tuple(to_, shape),
      torch::add_int_tuple(to_, row_major_strides(shape)),
      to_.add_bool(false),
      torch::add_ordered_dict(to_)};
  return to_.add_call(to_.add_global("torch._utils", "_rebuild_tensor_v2"),
                      to_.add_container(Type::kTuple, args));
}

// ("fsdp",) and ("ddp", "fsdp"), as verl calls them.
Id MeshMaker::dim_names(Id node) {
  if (source_.hybrid() == grid_.hybrid() || !is_list(from_, node))
    return to_.import(from_, node);
  const auto items = from_.items(node);
  std::vector<Id> names;
  if (grid_.hybrid()) names.push_back(to_.add_string("ddp"));
  names.push_back(to_.import(from_, items[items.size() - 1]));
  return list_like(node, names);
}

// "3", or the last of ("ptd:3", [0, 1], "3") of torch before 2.9.
std::string MeshMaker::group_name(Id node, size_t dim) const {
  if (!is_list(from_, node) || dim >= from_.items(node).size())
    refuse("groups that are not named");
  Id one = from_.items(node)[dim];
  if (from_.is(one, Type::kTuple) && from_.items(one).size() == 3)
    one = from_.items(one)[2];
  if (!from_.is(one, Type::kString)) refuse("groups that are not named");
  return std::string(from_.text(one));
}

std::vector<std::string> MeshMaker::group_names(Id node) const {
  const auto first = whole_number(group_name(node, 0));
  if (!source_.hybrid() && !grid_.hybrid()) return {group_name(node, 0)};
  const auto second =
      source_.hybrid() ? whole_number(group_name(node, 1)) : std::nullopt;
  constexpr uint64_t kMost = uint64_t{1} << 40;
  if (!first || *first > kMost ||
      (source_.hybrid() && second != *first + source_.shards))
    refuse("groups whose names don't count them: " +
           printable(group_name(node, 0)));
  if (!grid_.hybrid()) return {std::string(kAllRanks)};
  const uint64_t begin = source_.hybrid() ? *first : *first + 1;
  return {std::to_string(begin + grid_.part_of(rank_)),
          std::to_string(begin + grid_.shards + grid_.replica_of(rank_))};
}

Id MeshMaker::group(Id node, size_t dim, const std::string& name) {
  if (!from_.is(node, Type::kTuple)) return to_.add_string(name);
  const auto items = from_.items(node);
  std::vector<Id> ranks;
  for (const uint32_t rank : ranks_along(dim))
    ranks.push_back(to_.add_int(rank));
  const Id tag = source_.hybrid() || grid_.hybrid()
                     ? to_.add_string("ptd:" + name)
                     : to_.import(from_, items[0]);
  return to_.add_container(
      Type::kTuple, {tag, list_like(items[1], ranks), to_.add_string(name)});
}

Id MeshMaker::groups(Id node) {
  if (!is_list(from_, node) || from_.items(node).size() == 0)
    return to_.import(from_, node);
  const std::vector<std::string> names = group_names(node);
  const Id like = from_.items(node)[0];
  std::vector<Id> groups;
  for (size_t dim = 0; dim < names.size(); ++dim)
    groups.push_back(group(like, dim, names[dim]));
  return list_like(node, groups);
}

Id MeshMaker::mesh(Id node) {
  if (const auto known = made_.find(node); known != made_.end())
    return known->second;
  if (!from_.is(node, Type::kCall)) refuse("is not an object");
  const Id made = remade(node, [&](std::string_view key, Id value) -> Id {
    if (key == "_rank") return to_.add_int(rank_);
    if (key == "_coordinate_on_dim") {
      std::vector<Id> at;
      for (const uint64_t one : coordinate())
        at.push_back(to_.add_int(static_cast<int64_t>(one)));
      return list_like(value, at);
    }
    if (key == "_flatten_rank_map" || key == "_flatten_mesh_list") {
      std::vector<Id> all;
      for (uint32_t rank = 0; rank < grid_.ranks(); ++rank)
        all.push_back(to_.add_int(rank));
      return list_like(value, all);
    }
    if (key == "_rank_map") return rank_map(value, true);
    if (key == "mesh") return rank_map(value, false);
    if (key == "_layout") return layout(value);
    if (key == "_mesh_dim_names" || key == "mesh_dim_names")
      return dim_names(value);
    if (key == "_dim_group_names" || key == "_dim_group_infos")
      return groups(value);
    if (key == "_hash") return to_.add_none();  // torch makes it on demand
    if (std::ranges::find(kCarried, key) == std::end(kCarried))
      refuse("has a field " + printable(key) + " that is not known");
    return to_.import(from_, value);
  });
  made_.emplace(node, made);
  return made;
}

// Of the same module as the Shard beside it; torch has moved both.
Id MeshMaker::replicate(Id shard) {
  if (replicate_ != kNoId) return replicate_;
  if (!from_.is(shard, Type::kCall)) refuse("a placement that is not known");
  pickle::Call call;
  call.how = from_.call(shard).how;
  call.callable =
      to_.add_global(from_.module(from_.call(shard).callable), "Replicate");
  call.args = to_.add_container(Type::kTuple);
  call.state = to_.add_container(Type::kDict);
  return replicate_ = to_.add_call(call);
}

Id MeshMaker::placements(Id node) {
  if (source_.hybrid() == grid_.hybrid()) return to_.import(from_, node);
  const auto items = from_.items(node);  // placement_of() found some
  const Id last = items[items.size() - 1];
  std::vector<Id> made;
  if (grid_.hybrid()) made.push_back(replicate(last));
  made.push_back(to_.import(from_, last));
  return list_like(node, made);
}

// (ShardOrderEntry(tensor_dim, mesh_dims),): the dimension of the mesh is its
// last.
Id MeshMaker::shard_order(Id node) {
  if (source_.hybrid() == grid_.hybrid() || !is_list(from_, node))
    return to_.import(from_, node);
  std::vector<Id> entries;
  for (const Id entry : from_.items(node)) {
    const Id args =
        from_.is(entry, Type::kCall) ? from_.call(entry).args : kNoId;
    if (!from_.is(args, Type::kTuple) || from_.items(args).size() != 2 ||
        !is_list(from_, from_.items(args)[1]))
      refuse("a shard_order that is not known");
    const Id dim = to_.import(from_, from_.items(args)[0]);
    const Id last =
        to_.add_container(Type::kTuple, {to_.add_int(grid_.hybrid() ? 1 : 0)});
    pickle::Call copy;
    copy.how = from_.call(entry).how;
    copy.callable = to_.import(from_, from_.call(entry).callable);
    copy.args = to_.add_container(Type::kTuple, {dim, last});
    entries.push_back(to_.add_call(copy));
  }
  return list_like(node, entries);
}

Id MeshMaker::spec(Id node) {
  if (const auto known = made_.find(node); known != made_.end())
    return known->second;
  if (!from_.is(node, Type::kCall)) refuse("a spec that is not an object");
  const Id made = remade(node, [&](std::string_view key, Id value) {
    if (key == "mesh") return mesh(value);
    if (key == "placements") return placements(value);
    if (key == "shard_order") return shard_order(value);
    if (key == "_hash") return to_.add_none();
    return to_.import(from_, value);
  });
  made_.emplace(node, made);
  return made;
}

}  // namespace ckpt::runs
