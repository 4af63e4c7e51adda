// SPDX-License-Identifier: Apache-2.0
// A DTensor in a pickle, and the mesh that it is spread over.
//
//   _rebuild_from_type_v2(_rebuild_wrapper_subclass, DTensor,
//                         (DTensor, dtype, GLOBAL size, …),
//                         {_local_tensor, _spec})
//   _spec  DTensorSpec {mesh, placements, tensor_meta, _hash …}
//   mesh   DeviceMesh {_rank, _coordinate_on_dim, _rank_map [ranks] …}
//
// Each version of torch stores meshes differently, so none is made from
// scratch: the source's own is copied with its numbers replaced. Private to
// this room.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ckpt/box.h"
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
// Throws unfaithful_error for more than one mesh dimension, and for anything
// but Shard and Replicate.
Placement placement_of(const pickle::Document& document, pickle::Id spec,
                       const Shape& shape, const std::string& path);

// Copies specs of one document into another, for one rank of a number of ranks.
class MeshMaker {
 public:
  MeshMaker(const pickle::Document& from, pickle::Document& to,
            const std::string& path, uint32_t rank, uint32_t ranks)
      : from_(from), to_(to), path_(path), rank_(rank), ranks_(ranks) {}

  pickle::Id spec(pickle::Id node);
  // True for a storage (persistent id) of a mesh that was made anew.
  bool replaces(pickle::Id storage) const {
    return storages_.contains(storage);
  }

 private:
  pickle::Id mesh(pickle::Id node);
  pickle::Id layout(pickle::Id node);
  pickle::Id axis(pickle::Id node);
  pickle::Id sizes(pickle::Id node, uint64_t size, bool squeeze);
  pickle::Id rank_map(pickle::Id node);
  pickle::Id list_like(pickle::Id node, const std::vector<pickle::Id>& items);
  void note_storages(pickle::Id node);
  template <class Make>
  pickle::Id remade(pickle::Id node, Make make);
  [[noreturn]] void refuse(const std::string& what) const;

  const pickle::Document& from_;
  pickle::Document& to_;
  const std::string& path_;
  const uint32_t rank_;
  const uint32_t ranks_;
  std::map<pickle::Id, pickle::Id> made_;
  std::set<pickle::Id> storages_;
};

}  // namespace ckpt::runs
