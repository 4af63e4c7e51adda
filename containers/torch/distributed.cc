// SPDX-License-Identifier: Apache-2.0
#include "containers/torch/distributed.h"

#include <algorithm>

#include "ckpt/error.h"
#include "containers/torch/rebuild.h"
#include "lib/cuts.h"
#include "lib/text/format.h"

namespace ckpt::torch {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;

// A local tensor of strided shards can be many boxes of the global one.
constexpr uint64_t kMaxPieces = 4096;
constexpr size_t kMaxMeshRank = 16;

// Shard(dim): one chunk. _StridedShard(dim, split_factor): that chunk of each
// of split_factor equal parts. Adjacent runs are merged.
cuts::Runs shard(const cuts::Runs& runs, uint64_t split, uint64_t count,
                 uint64_t index) {
  cuts::Runs out;
  const uint64_t size = cuts::count_of(runs);
  for (uint64_t i = 0; i < split; ++i) {
    const cuts::Range part = cuts::chunk(size, split, i);
    if (part.count() == 0) break;
    const cuts::Range mine = cuts::chunk(part.count(), count, index);
    for (cuts::Run run :
         cuts::slice(runs, {part.begin + mine.begin, part.begin + mine.end})) {
      run.local = cuts::count_of(out);
      if (!out.empty() && out.back().whole + out.back().count == run.whole)
        out.back().count += run.count;
      else
        out.push_back(run);
    }
  }
  return out;
}

// How one mesh dimension splits the tensor.
struct Placement {
  enum class Type : uint8_t { kReplicate, kShard } type = Type::kReplicate;
  uint64_t dim = 0;
  uint64_t split = 1;
};

class Reader {
 public:
  Reader(const Document& document, const Storages& storages,
         std::string_view name)
      : document_(document), storages_(storages), name_(name) {}

  TensorRef dtensor(const Shape& global, Id state);
  TensorRef sharded(const Shape& global, DType dtype, Id state);
  Shape shape(Id node, std::string_view what) const;
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> text,
                         Args&&... args) const {
    throw Error(ExitCode::kDamaged, {storages_.path, text::printable(name_)},
                fmt::format(text, std::forward<Args>(args)...));
  }

 private:
  TensorRef local_tensor(Id node) const;
  Id attribute(Id object, std::string_view name) const;
  Id required(Id object, std::string_view name) const;
  std::vector<Placement> placements(Id spec, size_t rank) const;
  Placement placement(Id node, size_t rank) const;
  Dims mesh_shape(Id mesh) const;
  Dims coordinate(Id mesh, const Dims& shape) const;
  std::vector<std::vector<size_t>> shard_order(
      Id spec, const std::vector<Placement>& placements, size_t rank) const;
  std::vector<cuts::Runs> local_runs(Id spec, const Shape& global) const;
  void add_pieces(const std::vector<cuts::Runs>& runs, TensorRef& ref) const;
  void add_shard(Id node, const Shape& global, TensorRef& ref) const;

  const Document& document_;
  const Storages& storages_;
  std::string_view name_;
};

Shape Reader::shape(Id node, std::string_view what) const {
  const auto values = as_ints(document_, node);
  if (!values || values->size() > kMaxRank)
    fail("{} is not a sequence of integers", what);
  Shape shape;
  for (const int64_t value : *values) {
    if (value < 0) fail("{} {} is negative", what, value);
    shape.push_back(static_cast<uint64_t>(value));
  }
  if (!element_count(shape)) fail("{} {} overflows", what, to_string(shape));
  return shape;
}

TensorRef Reader::local_tensor(Id node) const {
  const auto ref = as_plain_tensor(document_, node, storages_, name_);
  if (ref) return *ref;
  // (how it is rebuilt, its class, …): torchao's optimizers have codes of 8
  // bits and a scale for each block of a rank's own part. Nothing is wrong with
  // it.
  if (document_.is(node, Type::kCall))
    if (const Id args = document_.call(node).args;
        document_.is(args, Type::kTuple))
      for (const Id arg : document_.items(args))
        if (document_.is(arg, Type::kGlobal) &&
            document_.module(arg).starts_with("torchao."))
          throw unfaithful_error(
              {storages_.path, text::printable(name_)},
              "is a DTensor of torchao's {}, whose blocks are those of each "
              "rank's part: such state is not read",
              text::printable(document_.text(arg)))
              .with_hint(
                  "open the rest without it: move the optimizer's files "
                  "away, or name those of the model");
  fail("its local tensor is of an unknown kind");
}

// An attribute of an object: in its state dict, or in its slots.
Id Reader::attribute(Id object, std::string_view name) const {
  if (!document_.is(object, Type::kCall)) return kNoId;
  const Id state = document_.call(object).state;
  if (document_.is(state, Type::kDict)) return document_.find(state, name);
  if (!document_.is(state, Type::kTuple)) return kNoId;
  for (const Id part : document_.items(state)) {
    const Id found = document_.find(part, name);
    if (found != kNoId) return found;
  }
  return kNoId;
}

Id Reader::required(Id object, std::string_view name) const {
  const Id found = attribute(object, name);
  if (found == kNoId) fail("it has no '{}'", name);
  return found;
}

Placement Reader::placement(Id node, size_t rank) const {
  if (!document_.is(node, Type::kCall)) fail("a placement is not an object");
  const Id callable = document_.call(node).callable;
  const std::string_view type =
      document_.is(callable, Type::kGlobal) ? document_.text(callable) : "";
  if (type == "Replicate") return {};
  if (type == "Partial" || type == "_Partial")
    throw unfaithful_error({storages_.path, text::printable(name_)},
                           "a DTensor that holds partial sums")
        .with_hint("redistribute it to Shard or Replicate before saving");
  if (type != "Shard" && type != "_StridedShard")
    fail("unknown placement {}", text::printable(type));

  const auto dim = document_.as_int(required(node, "dim"));
  int64_t at = dim.value_or(INT64_MIN);
  if (at < 0) at += static_cast<int64_t>(rank);
  if (!dim || at < 0 || at >= static_cast<int64_t>(rank))
    fail("Shard names no dimension of a tensor of rank {}", rank);
  Placement result{Placement::Type::kShard, static_cast<uint64_t>(at), 1};
  if (type == "_StridedShard") {
    const auto split = document_.as_int(required(node, "split_factor"));
    if (!split || *split < 1) fail("a split_factor that is not a count");
    result.split = static_cast<uint64_t>(*split);
  }
  return result;
}

std::vector<Placement> Reader::placements(Id spec, size_t rank) const {
  const Id tuple = required(spec, "placements");
  if (!document_.is(tuple, Type::kTuple) && !document_.is(tuple, Type::kList))
    fail("its placements are not a tuple");
  std::vector<Placement> result;
  for (const Id item : document_.items(tuple))
    result.push_back(placement(item, rank));
  if (result.size() > kMaxMeshRank) fail("a mesh of rank {}", result.size());
  return result;
}

// torch <= 2.9 keeps the mesh as a tensor, whose shape is enough; 2.10 and
// later keep it as a layout of (shape, stride) axes.
Dims Reader::mesh_shape(Id mesh) const {
  const Id tensor = attribute(mesh, "mesh");
  if (const auto ref = as_plain_tensor(document_, tensor, storages_, name_))
    return ref->shape;
  const Id layout = required(mesh, "_layout");
  if (const Id plain = attribute(layout, "shape"); plain != kNoId) {
    if (const auto size = document_.as_int(plain); size && *size >= 0)
      return {static_cast<uint64_t>(*size)};
    return shape(plain, "mesh shape");
  }
  const Id axes = required(layout, "axes");
  if (!document_.is(axes, Type::kTuple))
    fail("the mesh's axes are not a tuple");
  Dims result;
  for (const Id axis : document_.items(axes)) {
    // An axis flattened from several has several sizes.
    const auto size = element_count(shape(required(axis, "shape"), "axis"));
    result.push_back(*size);
  }
  return result;
}

Dims Reader::coordinate(Id mesh, const Dims& shape) const {
  const auto values = as_ints(document_, required(mesh, "_coordinate_on_dim"));
  if (!values || values->size() != shape.size())
    fail("its mesh of shape {} does not say which rank wrote it",
         to_string(shape));
  Dims result;
  for (size_t i = 0; i < values->size(); ++i) {
    if ((*values)[i] < 0 || static_cast<uint64_t>((*values)[i]) >= shape[i])
      fail("mesh coordinate {} lies outside a mesh of shape {}", (*values)[i],
           to_string(shape));
    result.push_back(static_cast<uint64_t>((*values)[i]));
  }
  return result;
}

// The mesh dimensions that split each tensor dimension, in the order that
// shard_order gives (torch >= 2.10), else from left to right.
std::vector<std::vector<size_t>> Reader::shard_order(
    Id spec, const std::vector<Placement>& placements, size_t rank) const {
  std::vector<std::vector<size_t>> order(rank);
  for (size_t m = 0; m < placements.size(); ++m)
    if (placements[m].type == Placement::Type::kShard)
      order[placements[m].dim].push_back(m);
  const Id entries = attribute(spec, "shard_order");
  if (!document_.is(entries, Type::kTuple)) return order;
  for (const Id entry : document_.items(entries)) {
    if (!document_.is(entry, Type::kCall)) continue;
    const Id args = document_.call(entry).args;
    if (!document_.is(args, Type::kTuple) || document_.items(args).size() != 2)
      continue;
    const auto dim = document_.as_int(document_.items(args)[0]);
    const auto mesh_dims = as_ints(document_, document_.items(args)[1]);
    if (!dim || *dim < 0 || static_cast<size_t>(*dim) >= rank || !mesh_dims)
      fail("a malformed shard_order");
    std::vector<size_t> wanted(mesh_dims->begin(), mesh_dims->end());
    auto& mine = order[static_cast<size_t>(*dim)];
    if (std::ranges::is_permutation(wanted, mine)) mine = wanted;
  }
  return order;
}

std::vector<cuts::Runs> Reader::local_runs(Id spec, const Shape& global) const {
  const size_t rank = global.size();
  const auto split = placements(spec, rank);
  std::vector<cuts::Runs> runs;
  for (const uint64_t size : global) runs.push_back({{0, 0, size}});
  if (std::ranges::none_of(split, [](const Placement& p) {
        return p.type == Placement::Type::kShard;
      }))
    return runs;

  const Id mesh = required(spec, "mesh");
  const Dims mesh_dims = mesh_shape(mesh);
  if (mesh_dims.size() != split.size())
    fail("{} placements on a mesh of rank {}", split.size(), mesh_dims.size());
  const Dims mine = coordinate(mesh, mesh_dims);
  const auto order = shard_order(spec, split, rank);
  for (size_t d = 0; d < rank; ++d) {
    for (const size_t m : order[d]) {
      const uint64_t parts = std::min(split[m].split, global[d] + 1);
      if (parts > kMaxPieces / std::max<uint64_t>(1, runs[d].size()))
        fail("it lies in more than {} parts", kMaxPieces);
      runs[d] = shard(runs[d], parts, mesh_dims[m], mine[m]);
    }
  }
  return runs;
}

// Adds one piece per combination of runs, with the local tensor's strides.
void Reader::add_pieces(const std::vector<cuts::Runs>& runs,
                        TensorRef& ref) const {
  uint64_t count = 1;
  for (const cuts::Runs& dim : runs) {
    count = checked_mul(count, dim.size()).value_or(UINT64_MAX);
    if (count > kMaxPieces) fail("it lies in more than {} parts", kMaxPieces);
  }
  const uint64_t item = element_size(ref.dtype);
  Dims strides = ref.extent.strides;
  if (strides.empty())
    for (const uint64_t stride : row_major_strides(ref.shape))
      strides.push_back(stride * item);

  for (uint64_t i = 0; i < count; ++i) {
    Piece piece{.box = {},
                .flat = std::nullopt,
                .extent = ref.extent,
                .transform = ref.transform};
    Dims offset(runs.size(), 0);
    Dims size(runs.size(), 0);
    uint64_t rest = i;
    for (size_t d = runs.size(); d-- > 0;) {
      const cuts::Run& run =
          runs[d][static_cast<size_t>(rest % runs[d].size())];
      rest /= runs[d].size();
      offset[d] = run.whole;
      size[d] = run.count;
      piece.extent.offset += run.local * strides[d];
    }
    piece.box = {offset, size};
    if (count > 1) piece.extent.strides = strides;
    ref.distributed->pieces.push_back(std::move(piece));
  }
}

TensorRef Reader::dtensor(const Shape& global, Id state) {
  // (None, {"_local_tensor": …, "_spec": …}) or the dict alone.
  Id local = document_.find(state, "_local_tensor");
  Id spec = document_.find(state, "_spec");
  if (document_.is(state, Type::kTuple)) {
    for (const Id part : document_.items(state)) {
      if (local == kNoId) local = document_.find(part, "_local_tensor");
      if (spec == kNoId) spec = document_.find(part, "_spec");
    }
  }
  if (local == kNoId || spec == kNoId)
    fail("a DTensor without a local tensor or spec");
  TensorRef ref = local_tensor(local);
  ref.distributed = Distributed{.global_shape = global, .pieces = {}};
  const auto runs = local_runs(spec, global);
  Shape expected;
  for (const cuts::Runs& dim : runs) expected.push_back(cuts::count_of(dim));
  const bool none = element_count(expected).value_or(0) == 0;
  // Ranks without a share of an uneven split hold a tensor of 0 elements, and
  // torch does not keep its shape.
  const bool fits = expected == ref.shape ||
                    (none && element_count(ref.shape).value_or(1) == 0);
  if (!fits)
    fail("the local tensor has shape {}, its placements say {}",
         to_string(ref.shape), to_string(expected));
  if (!none || element_count(global).value_or(1) == 0) add_pieces(runs, ref);
  return ref;
}

void Reader::add_shard(Id node, const Shape& global, TensorRef& ref) const {
  const TensorRef local = local_tensor(required(node, "tensor"));
  const Id metadata = required(node, "metadata");
  const Box box{shape(required(metadata, "shard_offsets"), "shard_offsets"),
                shape(required(metadata, "shard_sizes"), "shard_sizes")};
  if (!inside(box, global))
    fail("a shard at {} of {} lies outside {}", to_string(box.offset),
         to_string(box.shape), to_string(global));
  if (local.shape != box.shape)
    fail("a shard has shape {}, its metadata says {}", to_string(local.shape),
         to_string(box.shape));
  if (local.dtype != ref.dtype)
    fail("a shard is {}, the tensor {}", ckpt::name(local.dtype),
         ckpt::name(ref.dtype));
  ref.storage = local.storage;
  ref.shape = local.shape;
  ref.extent = local.extent;
  ref.transform = local.transform;
  ref.distributed->pieces.push_back({.box = box,
                                     .flat = std::nullopt,
                                     .extent = local.extent,
                                     .transform = local.transform});
}

// (local shards, ShardedTensorMetadata, process group, sharding spec, …)
TensorRef Reader::sharded(const Shape& global, DType dtype, Id state) {
  TensorRef ref;
  ref.dtype = dtype;
  ref.shape = Shape(global.size(), 0);
  ref.distributed = Distributed{.global_shape = global, .pieces = {}};
  if (!document_.is(state, Type::kTuple) || document_.items(state).empty() ||
      !document_.is(document_.items(state)[0], Type::kList))
    fail("a ShardedTensor without a list of shards");
  const auto shards = document_.items(document_.items(state)[0]);
  if (shards.size() > kMaxPieces) fail("{} local shards", shards.size());
  for (const Id node : shards) add_shard(node, global, ref);
  return ref;
}

bool named(const Document& document, Id type, std::string_view prefix,
           std::string_view name) {
  return document.is(type, Type::kGlobal) && document.text(type) == name &&
         document.module(type).starts_with(prefix);
}

bool is_dtensor(const Document& document, Id type) {
  return named(document, type, "torch.distributed.", "DTensor");
}
bool is_sharded(const Document& document, Id type) {
  return named(document, type, "torch.distributed._shard", "ShardedTensor");
}

}  // namespace

bool is_distributed_class(const Document& document, Id type) {
  return is_dtensor(document, type) || is_sharded(document, type);
}

std::optional<TensorRef> as_distributed(const Document& document, Id type,
                                        Id arguments, Id state,
                                        const Storages& storages,
                                        std::string_view name) {
  if (!is_distributed_class(document, type)) return std::nullopt;
  Reader reader(document, storages, name);
  if (!document.is(arguments, Type::kTuple) ||
      document.items(arguments).size() < 3)
    reader.fail("_rebuild_wrapper_subclass: too few arguments");
  const auto dtype = as_dtype(document, document.items(arguments)[1]);
  if (!dtype) reader.fail("_rebuild_wrapper_subclass: unknown dtype");
  const Shape global = reader.shape(document.items(arguments)[2], "size");
  if (!byte_size(*dtype, global))
    reader.fail("shape {} overflows", to_string(global));
  TensorRef ref = is_dtensor(document, type)
                      ? reader.dtensor(global, state)
                      : reader.sharded(global, *dtype, state);
  if (ref.dtype != *dtype)
    reader.fail("the local tensor is {}, the whole {}", ckpt::name(ref.dtype),
                ckpt::name(*dtype));
  return ref;
}

}  // namespace ckpt::torch
