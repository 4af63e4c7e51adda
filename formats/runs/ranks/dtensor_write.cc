// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/ranks/dtensor_write.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "containers/torch/file_plan.h"
#include "formats/runs/find/pattern.h"
#include "formats/target.h"
#include "lib/cuts.h"

namespace ckpt::runs {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;

// An instance without arguments whose fields are set afterwards.
Id instance_of(Document& document, const char* module, const char* name,
               std::initializer_list<std::pair<const char*, Id>> fields) {
  const Id state = document.add_container(Type::kDict);
  for (const auto& [key, value] : fields) document.set(state, key, value);
  pickle::Call call;
  call.how = pickle::How::kNewObj;
  call.callable = document.add_global(module, name);
  call.args = document.add_container(Type::kTuple);
  call.state = state;
  return document.add_call(call);
}

Id tuple_of(Document& document, const std::vector<Id>& items) {
  return document.add_container(Type::kTuple, items);
}

// The DTensors of one file: they share their mesh and placements.
class DTensors {
 public:
  DTensors(Document& document, uint32_t rank, uint32_t ranks)
      : document_(document),
        rank_(rank),
        ranks_(ranks),
        mesh_(mesh()),
        shard_(instance_of(document, "torch.distributed.tensor.placement_types",
                           "Shard", {{"dim", document.add_int(0)}})) {}

  Id make(Id local, DType dtype, const Shape& shape) {
    Document& d = document_;
    const Id type = d.add_global("torch.distributed.tensor", "DTensor");
    const Id size = torch::add_int_tuple(d, shape);
    const Id stride = torch::add_int_tuple(d, row_major_strides(shape));
    const Id of_type = torch::add_dtype(d, dtype);
    const Id layout =
        d.add_call(d.add_global("torch.serialization", "_get_layout"),
                   tuple_of(d, {d.add_string("torch.strided")}));
    const Id device = d.add_call(d.add_global("torch", "device"),
                                 tuple_of(d, {d.add_string("cpu")}));
    const Id arguments = tuple_of(d, {type, of_type, size, stride, d.add_int(0),
                                      layout, device, d.add_bool(false)});
    const Id state = d.add_container(Type::kDict);
    d.set(state, "_local_tensor", local);
    d.set(state, "_spec", spec(of_type, size, stride));
    return d.add_call(
        d.add_global("torch._tensor", "_rebuild_from_type_v2"),
        tuple_of(d, {d.add_global("torch._utils", "_rebuild_wrapper_subclass"),
                     type, arguments, tuple_of(d, {d.add_none(), state})}));
  }

 private:
  Id call_new(const char* name, const std::vector<Id>& arguments) {
    pickle::Call call;
    call.how = pickle::How::kNewObj;
    call.callable =
        document_.add_global("torch.distributed.tensor._dtensor_spec", name);
    call.args = tuple_of(document_, arguments);
    return document_.add_call(call);
  }

  Id spec(Id dtype, Id size, Id stride) {
    Document& d = document_;
    const Id shape =
        d.add_call(d.add_global("torch", "Size"), tuple_of(d, {size}));
    const Id meta = call_new("TensorMeta", {shape, stride, dtype});
    const Id order = call_new("ShardOrderEntry",
                              {d.add_int(0), tuple_of(d, {d.add_int(0)})});
    return instance_of(d, "torch.distributed.tensor._dtensor_spec",
                       "DTensorSpec",
                       {{"mesh", mesh_},
                        {"placements", tuple_of(d, {shard_})},
                        {"tensor_meta", meta},
                        {"shard_order", tuple_of(d, {order})},
                        {"use_strided_shard_as_shard_order", d.add_bool(false)},
                        {"_hash", d.add_none()}});
  }

  // A mesh over all ranks, as init_device_mesh("cuda", (W,), ("fsdp",)) makes.
  Id mesh() {
    Document& d = document_;
    const Id count = tuple_of(d, {d.add_int(ranks_)});
    const Id one = tuple_of(d, {d.add_int(1)});
    const Id axis =
        instance_of(d, "torch.distributed._mesh_layout", "_FlatLayout",
                    {{"shape", count}, {"stride", one}});
    const Id layout =
        instance_of(d, "torch.distributed._mesh_layout", "_MeshLayout",
                    {{"axes", tuple_of(d, {axis})}});
    std::vector<Id> all;
    std::string content;
    for (uint32_t rank = 0; rank < ranks_; ++rank) {
      all.push_back(d.add_int(rank));
      content.append(reinterpret_cast<const char*>(&rank), sizeof rank);
    }
    const Id map = d.add_call(
        d.add_global("torch._utils", "_rebuild_tensor_v2"),
        tuple_of(d,
                 {torch::add_inline_storage(d, DType::i32, std::move(content)),
                  d.add_int(0), count, one, d.add_bool(false),
                  torch::add_ordered_dict(d)}));
    return instance_of(
        d, "torch.distributed.device_mesh", "DeviceMesh",
        {{"_device_type", d.add_string("cuda")},
         {"_layout", layout},
         {"_rank_map", map},
         {"_mesh_dim_names", tuple_of(d, {d.add_string("fsdp")})},
         {"_root_mesh", d.add_none()},
         {"_flatten_rank_map", tuple_of(d, all)},
         {"_thread_id", d.add_none()},
         {"_flatten_mapping", d.add_container(Type::kDict)},
         {"_dim_group_names",
          d.add_container(Type::kList, {d.add_string("0")})},
         {"_rank", d.add_int(rank_)},
         {"_coordinate_on_dim", tuple_of(d, {d.add_int(rank_)})},
         {"_hash", d.add_none()}});
  }

  Document& document_;
  const uint32_t rank_, ranks_;
  const Id mesh_;
  const Id shard_;
};

}  // namespace

std::vector<uint32_t> ties_of(const Catalog& source,
                              const std::vector<size_t>& of) {
  std::map<std::tuple<uint32_t, uint64_t, Dims>, std::vector<size_t>> places;
  for (size_t i = 0; i < of.size(); ++i) {
    const Tensor& tensor = source.tensors[of[i]];
    if (tensor.kind != Kind::model || tensor.pieces.empty()) continue;
    const Extent& extent = tensor.pieces[0].extent;
    places[{extent.file, extent.offset, tensor.shape}].push_back(i);
  }
  std::vector<uint32_t> ties(of.size());
  uint32_t last = 0;
  for (const auto& [place, tied] : places) {
    if (tied.size() < 2) continue;
    ++last;
    for (const size_t i : tied) ties[i] = last;
  }
  return ties;
}

Box rows_of_rank(const Shape& shape, uint64_t dim, uint32_t rank,
                 uint32_t ranks) {
  Box box = Box::whole(shape);
  const cuts::Range rows = cuts::chunk(shape[dim], ranks, rank);
  box.offset[dim] = rows.begin;
  box.shape[dim] = rows.count();
  return box;
}

Target lay_out_dtensors(const Catalog& source, const std::vector<size_t>& of,
                        const std::string& pattern, uint32_t ranks,
                        const MakeRoot& make_root) {
  Target target;
  const std::vector<uint32_t> ties = ties_of(source, of);
  for (size_t i = 0; i < of.size(); ++i) {
    target.catalog.tensors.push_back(
        formats::without_pieces(source.tensors[of[i]]));
    target.catalog.tensors.back().tie = ties[i];
  }
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    Document document;
    DTensors dtensors(document, rank, ranks);
    std::vector<torch::TensorSlot> slots;
    std::vector<Id> nodes;
    std::vector<Box> boxes;
    for (size_t i = 0; i < of.size(); ++i) {
      const Tensor& tensor = target.catalog.tensors[i];
      const bool whole = ranks == 1 || tensor.shape.empty();
      boxes.push_back(whole ? Box::whole(tensor.shape)
                            : rows_of_rank(tensor.shape, 0, rank, ranks));
      slots.push_back({.dtype = tensor.dtype,
                       .shape = boxes.back().shape,
                       .requires_grad = false,
                       .parameter = false,
                       .tie = ties[i] ? ties[i] : torch::kOwnStorage});
      const Id slot = torch::add_placeholder(document, i);
      nodes.push_back(whole ? slot
                            : dtensors.make(slot, tensor.dtype, tensor.shape));
    }
    const Id root = make_root(document, nodes);
    const std::string name = fill(pattern, {{"W", ranks}, {"r", rank}});
    torch::FilePlan plan =
        torch::plan_file(document, root, slots, torch::archive_root_of(name));
    const auto file = static_cast<uint32_t>(target.catalog.files.size());
    target.catalog.files.push_back(
        {.path = name, .size = plan.file.size, .fill = {}});
    for (size_t i = 0; i < of.size(); ++i) {
      auto& pieces = target.catalog.tensors[i].pieces;
      // Several ranks' empty parts are one box, without bytes.
      if (volume(boxes[i]) == 0 &&
          std::ranges::any_of(pieces, [&](const Piece& piece) {
            return piece.box == boxes[i];
          }))
        continue;
      pieces.push_back(
          {.box = boxes[i],
           .flat = std::nullopt,
           .extent = {
               .offset = plan.data_offsets[i], .strides = {}, .file = file}});
    }
    plan.file.path = name;
    target.files.push_back(std::move(plan.file));
  }
  return target;
}

}  // namespace ckpt::runs
