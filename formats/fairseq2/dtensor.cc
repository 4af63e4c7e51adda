// SPDX-License-Identifier: Apache-2.0
#include "formats/fairseq2/dtensor.h"

#include <vector>

#include "containers/torch/file_plan.h"

namespace ckpt::fairseq2 {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;

Id tuple(Document& doc, const std::vector<Id>& items) {
  return doc.add_container(Type::kTuple, items);
}

// cls.__new__(cls, *args), then its state.
Id new_object(Document& doc, const char* module, const char* name,
              const std::vector<Id>& args, Id state = pickle::kNoId) {
  pickle::Call call;
  call.how = pickle::How::kNewObj;
  call.callable = doc.add_global(module, name);
  call.args = tuple(doc, args);
  call.state = state;
  return doc.add_call(call);
}

Id call(Document& doc, const char* module, const char* name,
        const std::vector<Id>& args) {
  return doc.add_call(doc.add_global(module, name), tuple(doc, args));
}

Id dict(Document& doc) { return doc.add_container(Type::kDict); }

// An int32 tensor with that content.
Id int_tensor(Document& doc, const std::vector<uint32_t>& values) {
  std::string bytes;
  for (const uint32_t value : values)
    for (int i = 0; i < 4; ++i)
      bytes.push_back(static_cast<char>(value >> (8 * i)));
  const Id storage = torch::add_inline_storage(doc, DType::i32, bytes);
  return call(doc, "torch._utils", "_rebuild_tensor_v2",
              {storage, doc.add_int(0),
               tuple(doc, {doc.add_int(static_cast<int64_t>(values.size()))}),
               tuple(doc, {doc.add_int(1)}), doc.add_bool(false),
               torch::add_ordered_dict(doc)});
}

Id placement(Document& doc, bool replicated) {
  constexpr const char* kModule = "torch.distributed.tensor.placement_types";
  if (replicated) return new_object(doc, kModule, "Replicate", {});
  const Id state = dict(doc);
  doc.set(state, "dim", doc.add_int(0));
  return new_object(doc, kModule, "Shard", {}, state);
}

constexpr const char* kSpecModule = "torch.distributed.tensor._dtensor_spec";

// Which mesh dimensions cut which tensor dimension.
Id shard_order(Document& doc, bool replicated) {
  if (replicated) return tuple(doc, {});
  return tuple(doc,
               {new_object(doc, kSpecModule, "ShardOrderEntry",
                           {doc.add_int(0), tuple(doc, {doc.add_int(0)})})});
}

Id spec(Document& doc, Id mesh, Id dtype, const Shape& shape, bool replicated) {
  const Id size =
      call(doc, "torch", "Size", {torch::add_int_tuple(doc, shape)});
  const Id meta = new_object(
      doc, kSpecModule, "TensorMeta",
      {size, torch::add_int_tuple(doc, row_major_strides(shape)), dtype});
  const Id state = dict(doc);
  doc.set(state, "mesh", mesh);
  doc.set(state, "placements", tuple(doc, {placement(doc, replicated)}));
  doc.set(state, "tensor_meta", meta);
  doc.set(state, "shard_order", shard_order(doc, replicated));
  doc.set(state, "use_strided_shard_as_shard_order", doc.add_bool(false));
  doc.set(state, "_hash", doc.add_none());
  return new_object(doc, kSpecModule, "DTensorSpec", {}, state);
}

// One axis of dp_size ranks.
Id mesh_layout(Document& doc, uint32_t size) {
  constexpr const char* kModule = "torch.distributed._mesh_layout";
  const Id axis = dict(doc);
  doc.set(axis, "shape", tuple(doc, {doc.add_int(size)}));
  doc.set(axis, "stride", tuple(doc, {doc.add_int(1)}));
  const Id state = dict(doc);
  doc.set(state, "axes",
          tuple(doc, {new_object(doc, kModule, "_FlatLayout", {}, axis)}));
  return new_object(doc, kModule, "_MeshLayout", {}, state);
}

}  // namespace

Id add_mesh(Document& doc, const Mesh& mesh) {
  std::vector<uint32_t> ranks;
  std::vector<Id> rank_ids;
  for (uint32_t dp = 0; dp < mesh.dp_size; ++dp) {
    ranks.push_back(dp * mesh.tp_size + mesh.tp);
    rank_ids.push_back(doc.add_int(ranks.back()));
  }
  // torch numbers process groups; the world is 0.
  const Id groups = doc.add_container(
      Type::kList, {doc.add_string(std::to_string(mesh.tp + 1))});
  const Id state = dict(doc);
  doc.set(state, "_device_type", doc.add_string(mesh.device));
  doc.set(state, "_layout", mesh_layout(doc, mesh.dp_size));
  doc.set(state, "_rank_map", int_tensor(doc, ranks));
  doc.set(state, "_mesh_dim_names", tuple(doc, {doc.add_string("intra")}));
  doc.set(state, "_root_mesh", doc.add_none());
  doc.set(state, "_flatten_rank_map", tuple(doc, rank_ids));
  doc.set(state, "_thread_id", doc.add_none());
  doc.set(state, "_flatten_mapping", dict(doc));
  doc.set(state, "_rank", doc.add_int(ranks[mesh.dp]));
  doc.set(state, "_coordinate_on_dim", tuple(doc, {doc.add_int(mesh.dp)}));
  doc.set(state, "_hash", doc.add_none());
  doc.set(state, "_dim_group_names", groups);
  return new_object(doc, "torch.distributed.device_mesh", "DeviceMesh", {},
                    state);
}

Id add_dtensor(Document& doc, Id mesh, DType dtype, const Shape& shape,
               bool replicated, uint64_t slot) {
  const Id type = doc.add_global("torch.distributed.tensor", "DTensor");
  const Id torch_dtype = torch::add_dtype(doc, dtype);
  const Id layout = call(doc, "torch.serialization", "_get_layout",
                         {doc.add_string("torch.strided")});
  const Id device = call(doc, "torch", "device", {doc.add_string("cpu")});
  const Id args =
      tuple(doc, {type, torch_dtype, torch::add_int_tuple(doc, shape),
                  torch::add_int_tuple(doc, row_major_strides(shape)),
                  doc.add_int(0), layout, device, doc.add_bool(false)});
  const Id parts = dict(doc);
  doc.set(parts, "_local_tensor", torch::add_placeholder(doc, slot));
  doc.set(parts, "_spec", spec(doc, mesh, torch_dtype, shape, replicated));
  const Id state = tuple(doc, {doc.add_none(), parts});
  return call(doc, "torch._tensor", "_rebuild_from_type_v2",
              {doc.add_global("torch._utils", "_rebuild_wrapper_subclass"),
               type, args, state});
}

}  // namespace ckpt::fairseq2
