// SPDX-License-Identifier: Apache-2.0
#include "formats/deepspeed/assemble.h"

#include <algorithm>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "lib/cuts.h"
#include "lib/rounded.h"
#include "lib/text/format.h"
#include "lib/unruled.h"

namespace ckpt::deepspeed {

using text::printable;

// Where a parameter's elements are in one model-parallel rank.
struct Assembler::Local {
  Shape shape;
  uint64_t numel = 0;
  size_t group = 0;     // ZeRO 1, 2
  uint64_t offset = 0;  // in the group; ZeRO 3: in each rank's vector
};

namespace {

// Which vector of a group: fp32, or a state.
const Flat* select(const Group& group, const std::string& state) {
  if (state.empty()) return &group.fp32;
  const auto it = group.states.find(state);
  return it == group.states.end() ? nullptr : &it->second;
}

[[noreturn]] void lacks(const OptimRank& rank, size_t group,
                        const std::string& state) {
  throw input_error({rank.path, {}}, "group {} has no {}, others do", group,
                    printable(state));
}

// ZeRO 3: the sub-group that holds element `at` of a rank's vector, and where
// in it.
std::pair<size_t, uint64_t> locate(const OptimRank& rank, uint64_t at) {
  size_t g = 0;
  while (g + 1 < rank.groups.size() && at >= rank.groups[g].fp32.numel)
    at -= rank.groups[g++].fp32.numel;
  return {g, at};
}

void check_dtype(const OptimRank& rank, const std::string& name, DType dtype,
                 const Flat& flat) {
  if (flat.dtype != dtype)
    throw input_error({rank.path, printable(name)},
                      "is {} here, {} in other partitions",
                      ckpt::name(flat.dtype), ckpt::name(dtype));
}

// The pieces of one model-parallel rank's slice.
class Cutter {
 public:
  Cutter(const Column& column, const Joined& joined, size_t t,
         const Shape& local, std::string name, std::string state)
      : column_(column),
        joined_(joined),
        t_(t),
        local_(local),
        name_(std::move(name)),
        state_(std::move(state)) {}

  std::optional<DType> dtype;
  std::vector<Piece> pieces;

  // ZeRO 1, 2
  void cut_group(size_t g, uint64_t offset, uint64_t numel) {
    const uint64_t part = partition_size(column_, g);
    if (numel == 0 || part == 0) return;
    const uint64_t end = offset + numel;
    for (uint64_t r = offset / part; r * part < end; ++r) {
      const OptimRank& rank = column_.optims[r];
      const Flat* flat = select(rank.groups[g], state_);
      if (!flat) lacks(rank, g, state_);
      const uint64_t from = std::max(offset, r * part);
      const uint64_t to = std::min(end, (r + 1) * part);
      add(rank, {from - offset, to - offset}, *flat, from - r * part);
    }
  }

  // ZeRO 3
  void cut_parts(uint64_t offset, uint64_t numel) {
    const uint64_t ranks = column_.optims.size();
    const uint64_t part = cuts::chunk_size(numel, ranks);
    for (uint64_t r = 0; r < ranks && r * part < numel; ++r) {
      const OptimRank& rank = column_.optims[r];
      const uint64_t end = std::min((r + 1) * part, numel);
      auto [g, at] = locate(rank, offset);
      for (uint64_t from = r * part; from < end; at = 0, ++g) {
        const Flat* flat = select(rank.groups[g], state_);
        if (!flat) lacks(rank, g, state_);
        const uint64_t to = std::min(end, from + (flat->numel - at));
        if (from < to) add(rank, {from, to}, *flat, at);
        from = to;
      }
    }
  }

 private:
  void add(const OptimRank& rank, const FlatRange& range, const Flat& flat,
           uint64_t at) {
    if (!dtype) dtype = flat.dtype;
    check_dtype(rank, name_, *dtype, flat);
    add_range(pieces, joined_, t_, local_, range, flat, at);
  }

  const Column& column_;
  const Joined& joined_;
  const size_t t_;
  const Shape& local_;
  const std::string name_;
  const std::string state_;
};

Joined whole(const Shape& shape, size_t ranks) {
  Joined joined;
  joined.shape = shape;
  joined.replicated = true;
  joined.tp = TpRule::replicated();
  joined.ranks.assign(ranks, {});
  return joined;
}

}  // namespace

void Assembler::note_replicas(const std::string& name, size_t t) {
  catalog_.problems.push_back(
      remark("replica", {catalog_.path, name},
             "tensor-parallel rank {} holds a replica that is cut "
             "otherwise; it is not compared",
             t));
}

Tensor Assembler::make(const std::string& name, const Joined& joined) {
  Tensor tensor;
  tensor.name = name;
  tensor.shape = joined.shape;
  tensor.tp = joined.tp;
  return tensor;
}

void Assembler::add_model(Tensor tensor) {
  places_.emplace(tensor.name, catalog_.tensors.size());
  catalog_.tensors.push_back(std::move(tensor));
}

void Assembler::add_masters(std::span<const Column> stage) {
  std::vector<std::map<std::string, Local>> locals(stage.size());
  std::vector<std::string> order;
  for (size_t t = 0; t < stage.size(); ++t) {
    const Column& column = stage[t];
    const bool third = column.optims[0].stage == 3;
    uint64_t offset = 0;
    for (size_t g = 0; g < column.model().groups.size(); ++g) {
      if (!third) offset = 0;
      for (const NamedShape& entry : column.model().groups[g]) {
        const bool first =
            locals[t]
                .emplace(entry.name, Local{entry.shape, entry.numel, g, offset})
                .second;
        if (!first)
          throw input_error({column.model().path, printable(entry.name)},
                            "is in param_shapes twice");
        if (t == 0) order.push_back(entry.name);
        const uint64_t ranks = column.optims.size();
        offset += third ? cuts::chunk_size(entry.numel, ranks) : entry.numel;
      }
    }
    if (locals[t].size() != order.size())
      throw input_error({column.model().path, {}},
                        "{} trainable parameters, tensor-parallel rank 0 has "
                        "{}",
                        locals[t].size(), order.size());
  }
  for (const std::string& name : order) {
    std::vector<Local> each;
    std::vector<Shape> shapes;
    for (size_t t = 0; t < stage.size(); ++t) {
      const auto it = locals[t].find(name);
      if (it == locals[t].end())
        throw input_error({stage[t].model().path, printable(name)},
                          "is missing from param_shapes; tensor-parallel rank "
                          "0 has it");
      each.push_back(it->second);
      shapes.push_back(it->second.shape);
    }
    if (has(name)) {
      catalog_.problems.push_back(
          remark("tied", {stage[0].model().path, name},
                 "is in several pipeline stages; the first one's is taken"));
      continue;
    }
    add_states(name, rules_.join(name, shapes), stage, each);
  }
}

void Assembler::add_states(const std::string& name, const Joined& joined,
                           std::span<const Column> stage,
                           std::span<const Local> locals) {
  const OptimRank& first = stage[0].optims[0];
  const bool third = first.stage == 3;
  const size_t group =
      third ? locate(first, locals[0].offset).first : locals[0].group;
  if (group >= first.groups.size()) return;  // no groups means no parameters
  std::vector<std::string> states{""};
  for (const auto& [state, flat] : first.groups[group].states)
    states.push_back(state);
  for (const std::string& state : states) {
    Tensor tensor = make(name, joined);
    if (!state.empty()) tensor.name += "." + state;
    std::optional<DType> dtype;
    std::vector<std::vector<Piece>> merged;
    for (size_t t = 0; t < stage.size(); ++t) {
      Cutter cutter(stage[t], joined, t, locals[t].shape, tensor.name, state);
      if (third)
        cutter.cut_parts(locals[t].offset, locals[t].numel);
      else
        cutter.cut_group(locals[t].group, locals[t].offset, locals[t].numel);
      if (dtype && cutter.dtype && dtype != cutter.dtype)
        throw input_error({stage[t].model().path, printable(tensor.name)},
                          "has another dtype than on tensor-parallel rank 0");
      if (!dtype) dtype = cutter.dtype;
      if (joined.merge != Merge::kNone) {
        merged.push_back(std::move(cutter.pieces));
        continue;
      }
      if (t > 0 && joined.replicated) {
        if (!add_replicas(tensor.pieces, std::move(cutter.pieces)))
          note_replicas(tensor.name, t);
        continue;
      }
      tensor.pieces.insert(tensor.pieces.end(), cutter.pieces.begin(),
                           cutter.pieces.end());
    }
    tensor.dtype = dtype.value_or(DType::f32);
    // Each rank's gradient is that of the sum, and so are its moments.
    if (!merged.empty())
      merge(tensor, state.empty() ? joined.merge : Merge::kMean, merged);
    if (state.empty()) {
      tensor.requires_grad = true;
      add_model(std::move(tensor));
      continue;
    }
    tensor.kind = Kind::optim;
    tensor.param = name;
    tensor.state = state;
    add_optim(std::move(tensor));
  }
  // step: the same on all ranks.
  for (const auto& [state, scalar] : first.groups[group].scalars) {
    Tensor tensor;
    tensor.name = name + "." + state;
    tensor.dtype = scalar.dtype;
    tensor.kind = Kind::optim;
    tensor.param = name;
    tensor.state = state;
    tensor.tp = TpRule::replicated();
    for (size_t t = 0; t < stage.size(); ++t)
      for (const OptimRank& rank : stage[t].optims) {
        const size_t g =
            third ? locate(rank, locals[t].offset).first : locals[t].group;
        const auto it = rank.groups[g].scalars.find(state);
        if (it == rank.groups[g].scalars.end()) lacks(rank, g, state);
        check_dtype(rank, tensor.name, tensor.dtype, it->second);
        Piece piece;
        piece.extent = {.offset = it->second.offset,
                        .strides = {},
                        .file = it->second.file};
        piece.transform = it->second.transform;
        tensor.pieces.push_back(std::move(piece));
      }
    add_optim(std::move(tensor));
  }
}

// Compares the checksums that the archives hold.
bool Assembler::equal_bytes(
    std::span<const torch::TensorRef* const> refs) const {
  std::optional<std::pair<uint32_t, uint64_t>> first;
  for (const torch::TensorRef* ref : refs) {
    const auto& at = ref->extent;
    const auto crc =
        std::ranges::find_if(catalog_.crcs, [&](const StoredCrc& entry) {
          return entry.file == at.file && entry.begin == at.offset;
        });
    if (crc == catalog_.crcs.end()) return false;
    const std::pair now{crc->crc32, crc->end - crc->begin};
    if (first && *first != now) return false;
    first = now;
  }
  return true;
}

// The optimizer's rules need not name tensors that it does not have.
Joined Assembler::join_module(const std::string& name,
                              const std::vector<Shape>& shapes,
                              std::span<const torch::TensorRef* const> refs,
                              bool buffer) {
  const bool same = std::ranges::all_of(
      shapes, [&](const Shape& shape) { return shape == shapes[0]; });
  if (buffer && same) return whole(shapes[0], shapes.size());
  if (shapes.size() == 1 || rules_.names(name) ||
      rules_.is_of_module(name, shapes[0]))
    return rules_.join(name, shapes);
  if (!rules_.any() && same) {
    Joined joined = whole(shapes[0], shapes.size());
    joined.unruled = true;
    return joined;
  }
  const bool replicas = same && equal_bytes(refs);
  catalog_.problems.push_back(warning(
      "no_rule", {catalog_.path, name}, "{}",
      replicas ? "no rule says how its tensor-parallel slices are joined; "
                 "they are equal and taken as replicas"
               : "no rule says how its tensor-parallel slices are joined; "
                 "they are joined on dimension 0, DeepSpeed's default"));
  if (!replicas) return rules_.join(name, shapes);
  Joined joined = whole(shapes[0], shapes.size());
  joined.unruled = true;
  return joined;
}

// What the module has of a parameter whose main weight was taken: all ranks'
// slices of it, joined as those were.
void Assembler::add_rounding(const std::string& name,
                             std::span<const ByName> ranks) {
  std::vector<Shape> shapes;
  std::vector<const torch::TensorRef*> refs;
  for (const ByName& rank : ranks) {
    const auto it = rank.find(name);
    if (it == rank.end() || it->second->distributed ||
        it->second->dtype != ranks[0].at(name)->dtype)
      return;
    refs.push_back(it->second);
    shapes.push_back(it->second->shape);
  }
  const Tensor& main = catalog_.tensors[places_.at(name)];
  const Joined joined = rules_.join(name, shapes);
  if (joined.shape != main.shape || joined.merge != Merge::kNone) return;
  Tensor tensor;
  tensor.name = name;
  tensor.shape = joined.shape;
  tensor.dtype = refs[0]->dtype;
  for (size_t t = 0; t < ranks.size(); ++t) {
    std::vector<Piece> pieces;
    add_slice(pieces, joined, t, shapes[t], refs[t]->dtype, refs[t]->extent,
              refs[t]->transform);
    tensor.pieces.insert(tensor.pieces.end(), pieces.begin(), pieces.end());
  }
  catalog_.redundant.push_back({.tensor = std::move(tensor),
                                .value = {},
                                .same_as = {},
                                .why = std::string(kRoundedWeight)});
}

void Assembler::add_slices(std::span<const Named* const> ranks,
                           const std::set<std::string>& buffers,
                           const std::vector<std::string>& paths) {
  std::vector<ByName> others;
  for (const Named* named : ranks)
    for (auto& map = others.emplace_back(); const auto& [name, ref] : *named)
      map.emplace(name, &ref);
  for (const auto& [name, first] : *ranks[0]) {
    if (has(name)) {
      add_rounding(name, others);
      continue;
    }
    std::vector<Shape> shapes;
    std::vector<const torch::TensorRef*> refs;
    for (size_t t = 0; t < ranks.size(); ++t) {
      const auto it = others[t].find(name);
      if (it == others[t].end())
        throw input_error({paths[t], printable(name)},
                          "is missing; tensor-parallel rank 0 has it");
      if (it->second->dtype != first.dtype)
        throw input_error(
            {paths[t], printable(name)}, "is {}, on tensor-parallel rank 0 {}",
            ckpt::name(it->second->dtype), ckpt::name(first.dtype));
      if (it->second->distributed)
        throw unfaithful_error({paths[t], printable(name)},
                               "is a part of a DTensor, which DeepSpeed's "
                               "files are not expected to hold");
      refs.push_back(it->second);
      shapes.push_back(it->second->shape);
    }
    const bool buffer = buffers.contains(name);
    const Joined joined = join_module(name, shapes, refs, buffer);
    Tensor tensor = make(name, joined);
    tensor.dtype = first.dtype;
    tensor.dp_replicated = buffer;
    std::vector<size_t> owners;  // of each piece
    std::vector<std::vector<Piece>> merged;
    const bool merges = joined.merge == Merge::kSum ||
                        (joined.merge == Merge::kMean && !equal_bytes(refs));
    for (size_t t = 0; t < ranks.size(); ++t) {
      std::vector<Piece> pieces;
      add_slice(pieces, joined, t, shapes[t], refs[t]->dtype, refs[t]->extent,
                refs[t]->transform);
      if (merges) {
        merged.push_back(std::move(pieces));
        continue;
      }
      tensor.pieces.insert(tensor.pieces.end(), pieces.begin(), pieces.end());
      owners.resize(tensor.pieces.size(), t);
    }
    if (merges) merge(tensor, joined.merge, merged);
    if (joined.unruled && !tensor.shape.empty())
      set_aside(tensor, owners, catalog_);
    add_model(std::move(tensor));
  }
}

void Assembler::add_module(std::span<const Column> stage) {
  std::vector<const Named*> ranks;
  std::vector<std::string> paths;
  std::set<std::string> buffers;
  for (const Column& column : stage) {
    ranks.push_back(&column.model().module);
    paths.push_back(column.model().path);
    buffers.insert(column.model().buffers.begin(),
                   column.model().buffers.end());
  }
  add_slices(ranks, buffers, paths);
  add_frozen(stage);
}

// ZeRO 3: each rank's file has that rank's part of every frozen parameter.
void Assembler::add_frozen(std::span<const Column> stage) {
  for (size_t i = 0; i < stage[0].model().frozen.size(); ++i) {
    const std::string& name = stage[0].model().frozen[i].name;
    if (has(name)) continue;
    std::vector<Shape> shapes;
    for (const Column& column : stage) {
      const auto& frozen = column.model().frozen;
      if (i >= frozen.size() || frozen[i].name != name)
        throw input_error({column.model().path, printable(name)},
                          "is missing from frozen_param_shapes");
      shapes.push_back(frozen[i].shape);
    }
    const Joined joined = rules_.join(name, shapes);
    Tensor tensor = make(name, joined);
    std::optional<DType> dtype;
    for (size_t t = 0; t < stage.size(); ++t) {
      const std::vector<ModelRank>& models = stage[t].models;
      const uint64_t numel = stage[t].model().frozen[i].numel;
      const uint64_t part = (numel + models.size() - 1) / models.size();
      std::vector<Piece> pieces;
      for (uint64_t r = 0; r < models.size(); ++r) {
        const auto it =
            std::ranges::find(models[r].fragments, name,
                              [](const auto& entry) { return entry.first; });
        if (it == models[r].fragments.end())
          throw input_error({models[r].path, printable(name)},
                            "is frozen, and frozen_param_fragments has no "
                            "part of it");
        const torch::TensorRef& ref = it->second;
        const uint64_t from = std::min(numel, r * part);
        const uint64_t to = std::min(numel, from + part);
        const uint64_t have = element_count(ref.shape).value_or(0);
        if (!ref.extent.strides.empty() || have < to - from || have > part ||
            element_size(ref.dtype) == 0)
          throw input_error({models[r].path, printable(name)},
                            "the fragment has {} elements, rank {} of {} has "
                            "{} of {}",
                            have, r, models.size(), to - from, numel);
        if (dtype && *dtype != ref.dtype)
          throw input_error({models[r].path, printable(name)},
                            "is {} here, {} on other ranks",
                            ckpt::name(ref.dtype), ckpt::name(*dtype));
        dtype = ref.dtype;
        if (from < to)
          add_range(pieces, joined, t, shapes[t], {from, to},
                    {ref.dtype, ref.extent.file, ref.extent.offset, have,
                     ref.transform},
                    0);
      }
      if (t > 0 && joined.replicated) {
        if (!add_replicas(tensor.pieces, std::move(pieces)))
          note_replicas(name, t);
        continue;
      }
      tensor.pieces.insert(tensor.pieces.end(), pieces.begin(), pieces.end());
    }
    tensor.dtype = dtype.value_or(DType::f32);
    add_model(std::move(tensor));
  }
}

// A parameter under several names is stored once.
void Assembler::add_shared(const ModelRank& rank) {
  for (const auto& [name, source] : rank.shared) {
    if (has(name)) continue;
    const auto it = places_.find(source);
    if (it == places_.end())
      throw input_error({rank.path, printable(name)},
                        "shared_params says that it is {}, which is missing",
                        printable(source));
    Tensor& original = catalog_.tensors[it->second];
    if (original.tie == 0) original.tie = ++ties_;
    Tensor alias = original;
    alias.name = name;
    add_model(std::move(alias));
  }
}

void Assembler::finish() {
  std::set<std::string> names;
  for (Tensor& tensor : optim_) {
    if (has(tensor.name) || !names.insert(tensor.name).second)
      throw input_error({catalog_.path, printable(tensor.name)},
                        "is the name of two tensors");
    catalog_.tensors.push_back(std::move(tensor));
  }
  optim_.clear();
  if (merged_of_) say_merged();
}

}  // namespace ckpt::deepspeed
