// SPDX-License-Identifier: Apache-2.0
// A DTensor in a pickle, and the mesh that it is spread over.
//
//   _rebuild_from_type_v2(_rebuild_wrapper_subclass, DTensor,
//                         (DTensor, dtype, GLOBAL size, …),
//                         {_local_tensor, _spec})
//   _spec  DTensorSpec {mesh, placements, tensor_meta, _hash …}
//   mesh   DeviceMesh {_rank, _coordinate_on_dim, _rank_map [ranks],
//          _dim_group_names …}
//
// Each version of torch stores meshes differently, so none is made from
// scratch: the source's own is copied with its numbers replaced.
//
// FSDP1 gathers what it loads over the groups of the file's mesh, by name.
// torch counts the groups of a job. 0 is all ranks, the group of a mesh of one
// dimension; one of R x S makes S groups of its columns, then R of its rows:
//
//   ranks 0 1 2   columns 1 2 3   rank 4: ("2", "5")
//         3 4 5   rows    4 5
//
// Private to this room.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ckpt/box.h"
#include "formats/runs/ranks/grid.h"
#include "lib/pickle/value.h"

namespace ckpt::runs {

struct DTensorNodes {
  pickle::Id local = pickle::kNoId;
  pickle::Id spec = pickle::kNoId;
};
// Nothing if the node is another kind of tensor.
std::optional<DTensorNodes> find_dtensor(const pickle::Document& document,
                                         pickle::Id node);

// Where on the mesh the rank is that wrote a spec: along the dimensions that
// shard the tensor, and along the others.
struct MeshPlace {
  std::vector<uint64_t> part;
  std::vector<uint64_t> replica;
};
// Nothing if the tensor is whole on each rank, or the mesh does not say.
std::optional<MeshPlace> place_on_mesh(const pickle::Document& document,
                                       pickle::Id spec);

struct Placement {
  bool shard = false;  // false: whole on each rank
  uint64_t dim = 0;
};
// Throws unfaithful_error for anything but Shard and Replicate, the latter
// along all dimensions of the mesh but the last.
Placement placement_of(const pickle::Document& document, pickle::Id spec,
                       const Shape& shape, const std::string& path);

// Copies specs of one document, of rank 0 of `source`, into another, for a rank
// of `target`.
class MeshMaker {
 public:
  MeshMaker(const pickle::Document& from, pickle::Document& to,
            const std::string& path, uint32_t rank, const Grid& source,
            const Grid& target)
      : from_(from),
        to_(to),
        path_(path),
        rank_(rank),
        source_(source),
        grid_(target) {}

  pickle::Id spec(pickle::Id node);
  // True for a storage (persistent id) of a mesh that was made anew.
  bool replaces(pickle::Id storage) const {
    return storages_.contains(storage);
  }

 private:
  pickle::Id mesh(pickle::Id node);
  pickle::Id layout(pickle::Id node);
  pickle::Id axis(pickle::Id node, size_t dim);
  pickle::Id sizes(pickle::Id node, const Dims& sizes);
  pickle::Id rank_map(pickle::Id node, bool flat);
  pickle::Id dim_names(pickle::Id node);
  pickle::Id groups(pickle::Id node);
  pickle::Id group(pickle::Id node, size_t dim, const std::string& name);
  pickle::Id placements(pickle::Id node);
  pickle::Id shard_order(pickle::Id node);
  pickle::Id replicate(pickle::Id shard);
  std::string group_name(pickle::Id node, size_t dim) const;
  std::vector<std::string> group_names(pickle::Id node) const;
  Dims shape() const;
  Dims coordinate() const;
  std::vector<uint32_t> ranks_along(size_t dim) const;
  pickle::Id list_like(pickle::Id node, const std::vector<pickle::Id>& items);
  void note_storages(pickle::Id node);
  template <class Make>
  pickle::Id remade(pickle::Id node, Make make);
  [[noreturn]] void refuse(const std::string& what) const;

  const pickle::Document& from_;
  pickle::Document& to_;
  const std::string& path_;
  const uint32_t rank_;
  const Grid source_, grid_;
  pickle::Id replicate_ = pickle::kNoId;
  std::map<pickle::Id, pickle::Id> made_;
  std::set<pickle::Id> storages_;
};

}  // namespace ckpt::runs
