// SPDX-License-Identifier: Apache-2.0
#include "formats/fairseq2/optimizer_write.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "ckpt/error.h"
#include "formats/fairseq2/dtensor.h"
#include "formats/fairseq2/flat.h"
#include "formats/fairseq2/optimizer.h"
#include "lib/io/file.h"
#include "lib/pickle/parts.h"

namespace ckpt::fairseq2 {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;

enum class Encoding : uint8_t { kPlain, kDTensor, kFlat };

const Object* find_object(const Catalog& catalog, std::string_view name) {
  const auto found = std::ranges::find(catalog.objects, name, &Object::name);
  return found == catalog.objects.end() ? nullptr : &*found;
}

// The names in each group's "params", as the reader put them there; nothing for
// another format's object.
std::optional<std::vector<std::vector<std::string>>> group_names(
    const Object* groups) {
  if (groups == nullptr) return std::nullopt;
  const Document& doc = *groups->document;
  if (!doc.is(groups->node, Type::kList)) return std::nullopt;
  std::vector<std::vector<std::string>> all;
  for (const Id group : doc.items(groups->node)) {
    const Id params = doc.find(group, "params");
    if (!doc.is(params, Type::kList)) return std::nullopt;
    auto& names = all.emplace_back();
    for (const Id name : doc.items(params)) {
      if (!doc.is(name, Type::kString)) return std::nullopt;
      names.emplace_back(doc.text(name));
    }
  }
  return all;
}

// The device of the source's mesh; else what the trainer's random states show:
// one for the CPU, and one more for each GPU.
std::string mesh_device(const Catalog& source, Target& target) {
  if (const Object* device = find_object(source, kDeviceObject))
    return std::string(device->document->text(device->node));
  const Object* bag = find_object(source, "trainer._rng_bag");
  std::string why = "the usual one";
  std::string device = "cuda";
  if (bag != nullptr) {
    const Document& doc = *bag->document;
    const Id generators = doc.find(bag->node, "generators");
    if (doc.is(generators, Type::kList)) {
      device = doc.items(generators).size() == 1 ? "cpu" : "cuda";
      why = "by the trainer's random states";
    }
  }
  target.assumptions.push_back("optimizer's device mesh: " + device + ", " +
                               why);
  return device;
}

class OptimizerWriter {
 public:
  OptimizerWriter(const Catalog& source, const Topology& grid, Target& target)
      : source_(source), grid_(grid), target_(target) {
    for (size_t i = 0; i < target.catalog.tensors.size(); ++i) {
      const Tensor& tensor = target.catalog.tensors[i];
      if (tensor.kind == Kind::optim) states_[tensor.param].push_back(i);
      if (tensor.kind == Kind::model) models_.emplace(tensor.name, &tensor);
    }
    groups_ = find_object(source, kGroupsObject);
    const auto names = group_names(groups_);
    if (!names)
      throw unfaithful_error({source.path, {}},
                             "optimizer tensors, but no parameter groups with "
                             "names: fairseq2 numbers parameters by group")
          .with_hint("--model-only leaves the optimizer out");
    group_names_ = *names;
    for (const Object& object : source.objects)
      if (object.name.starts_with(kStatePrefix) &&
          pickle::storages_below(*object.document, object.node).empty())
        values_.push_back(&object);
  }

  void write(const std::vector<std::vector<std::string>>& order,
             const std::string& directory) {
    choose_encoding(order);
    for (uint32_t pp = 0; pp < grid_.pp; ++pp) {
      const Stage stage = number(order[pp]);
      for (uint32_t tp = 0; tp < grid_.tp; ++tp)
        for (uint32_t dp = 0; dp < grid_.dp; ++dp)
          write_file(stage, {grid_, pp, tp, dp}, directory);
    }
  }

 private:
  struct Stage {
    std::vector<std::vector<std::string>> groups;
    // parameter -> its slice on each data-parallel rank
    std::unordered_map<std::string, std::vector<FlatRange>> slices;
  };

  void choose_encoding(const std::vector<std::vector<std::string>>& order);
  Granularity source_granularity(
      const std::vector<std::vector<std::string>>& stages) const;
  std::vector<FlatParameter> flat_parameters(
      const std::vector<std::string>& order, uint32_t tp) const;
  Stage number(const std::vector<std::string>& order) const;
  void check_state(const Tensor& state) const;
  void write_file(const Stage& stage, const Coordinates& at,
                  const std::string& directory);
  Id add_state(FileBuilder& file, const Stage& stage, const Coordinates& at,
               const std::string& param, Id mesh) const;
  Id add_value(FileBuilder& file, const Stage& stage, const Coordinates& at,
               size_t index, Id mesh) const;
  Id add_groups(Document& doc, const Stage& stage) const;

  const Catalog& source_;
  const Topology grid_;
  Target& target_;
  const Object* groups_ = nullptr;
  std::vector<std::vector<std::string>> group_names_;
  std::vector<const Object*> values_;  // states that are not tensors
  Encoding encoding_ = Encoding::kPlain;
  Granularity granularity_ = Granularity::kLayer;
  std::string device_;
  std::unordered_map<std::string, std::vector<size_t>> states_;
  std::unordered_map<std::string_view, const Tensor*> models_;
};

void OptimizerWriter::choose_encoding(
    const std::vector<std::vector<std::string>>& order) {
  if (grid_.dp == 1) return;
  const bool flat =
      source_.format == "fairseq2" &&
      std::ranges::any_of(source_.tensors, [](const Tensor& tensor) {
        return tensor.kind == Kind::optim && !tensor.pieces.empty() &&
               tensor.pieces[0].flat.has_value();
      });
  encoding_ = flat ? Encoding::kFlat : Encoding::kDTensor;
  if (flat)
    granularity_ = source_granularity(order);
  else
    device_ = mesh_device(source_, target_);
  target_.assumptions.push_back(
      flat ? fmt::format("optimizer: slices of FSDP1's flat parameters, one "
                         "for each {}, as the source has them",
                         name(granularity_))
           : "optimizer: DTensors of FSDP2, as torch 2.13 pickles them");
}

std::vector<FlatParameter> OptimizerWriter::flat_parameters(
    const std::vector<std::string>& order, uint32_t tp) const {
  std::vector<FlatParameter> all;
  for (const std::string& name : order) {
    const auto found = models_.find(name);
    if (found == models_.end())
      throw unfaithful_error({source_.path, name},
                             "FSDP1's slices need the model's parameters, and "
                             "this one is left out");
    const Tensor& tensor = *found->second;
    const Shape local = tp_local(tensor.shape, tensor.tp, tp);
    if (tp > 1 && tensor.tp.groups > 1)
      throw unfaithful_error({source_.path, name},
                             "split in {} groups, which FSDP1's flat slices "
                             "can't follow",
                             tensor.tp.groups);
    all.push_back(
        {name, element_count(local).value_or(0), element_size(tensor.dtype)});
    if (all.back().itemsize != all.front().itemsize)
      throw unfaithful_error({source_.path, name},
                             "{}, but FSDP1's flat parameters have one dtype",
                             ckpt::name(tensor.dtype));
  }
  return all;
}

// The granularity that matches the cuts between the source's slices.
Granularity OptimizerWriter::source_granularity(
    const std::vector<std::vector<std::string>>& stages) const {
  std::vector<std::string> order;
  for (const auto& stage : stages)
    order.insert(order.end(), stage.begin(), stage.end());
  std::unordered_map<std::string_view, std::vector<FlatRange>> seen;
  for (const Tensor& tensor : source_.tensors) {
    if (tensor.kind != Kind::optim || tensor.pieces.empty()) continue;
    if (!tensor.pieces[0].flat || seen.contains(tensor.param)) continue;
    auto& ranges = seen[tensor.param];
    for (const Piece& piece : tensor.pieces)
      if (piece.box == tensor.pieces[0].box && piece.flat &&
          !std::ranges::count(ranges, *piece.flat))
        ranges.push_back(*piece.flat);
  }
  const auto parameters = flat_parameters(order, source_.topology.tp);
  std::string mismatch;
  for (const Granularity granularity :
       {Granularity::kLayer, Granularity::kStack, Granularity::kModel}) {
    const auto slices =
        flat_slices(parameters, source_.topology.dp, granularity);
    bool same = true;
    for (size_t i = 0; i < order.size() && same; ++i) {
      std::vector<FlatRange> expected = slices[i];
      std::erase_if(expected,
                    [](const FlatRange& r) { return r.begin == r.end; });
      const auto found = seen.find(order[i]);
      same = found == seen.end() || found->second == expected;
      if (!same && mismatch.empty()) mismatch = order[i];
    }
    if (same) return granularity;
  }
  throw unfaithful_error({source_.path, mismatch},
                         "the optimizer's FSDP1 slices are not those of one "
                         "flat parameter per layer, stack or model, so that "
                         "those of {} ranks can't be told",
                         grid_.dp)
      .with_hint("--dp 1 needs no slices; --model-only leaves them out");
}

// Reduces the groups to a stage's parameters.
OptimizerWriter::Stage OptimizerWriter::number(
    const std::vector<std::string>& order) const {
  const std::unordered_set<std::string_view> here(order.begin(), order.end());
  Stage stage;
  size_t count = 0;
  for (const auto& names : group_names_) {
    auto& group = stage.groups.emplace_back();
    for (const std::string& name : names)
      if (here.contains(name)) group.push_back(name);
    count += group.size();
  }
  if (count != order.size())
    throw unfaithful_error({source_.path, {}},
                           "the parameter groups hold {} of the {} parameters",
                           count, order.size())
        .with_hint("--model-only leaves the optimizer out");
  if (encoding_ == Encoding::kFlat) {
    const auto slices =
        flat_slices(flat_parameters(order, grid_.tp), grid_.dp, granularity_);
    for (size_t i = 0; i < order.size(); ++i)
      stage.slices.emplace(order[i], slices[i]);
  }
  return stage;
}

// Refuses statistics that are not cut like their parameter: they can't be cut
// at all.
void OptimizerWriter::check_state(const Tensor& state) const {
  if (grid_.dp == 1 || state.shape.empty()) return;
  const auto model = models_.find(state.param);
  const bool same = model == models_.end() ||
                    state.shape == model->second->shape ||
                    (encoding_ == Encoding::kDTensor &&
                     state.shape[0] == model->second->shape[0]);
  if (same) return;
  throw unfaithful_error({source_.path, state.name},
                         "shape {} for a parameter of {}: how {} data-parallel "
                         "ranks share it is not known",
                         to_string(state.shape),
                         to_string(model->second->shape), grid_.dp)
      .with_hint("--dp 1 keeps it whole; --model-only leaves it out");
}

Id OptimizerWriter::add_value(FileBuilder& file, const Stage& stage,
                              const Coordinates& at, size_t index,
                              Id mesh) const {
  const Tensor& tensor = target_.catalog.tensors[index];
  Document& doc = file.document;
  if (tensor.shape.empty() || encoding_ == Encoding::kPlain)
    return torch::add_placeholder(doc, file.add_rows(target_, index, true));
  check_state(tensor);
  if (encoding_ == Encoding::kFlat) {
    const FlatRange& slice = stage.slices.at(tensor.param)[at.dp];
    return torch::add_placeholder(doc, file.add_flat(target_, index, slice));
  }
  const bool whole = tensor.dp_replicated;
  const uint64_t slot = file.add_rows(target_, index, whole);
  return add_dtensor(doc, mesh, tensor.dtype,
                     tp_local(tensor.shape, tensor.tp, grid_.tp), whole, slot);
}

Id OptimizerWriter::add_state(FileBuilder& file, const Stage& stage,
                              const Coordinates& at, const std::string& param,
                              Id mesh) const {
  const auto found = states_.find(param);
  if (found == states_.end()) return pickle::kNoId;
  if (encoding_ == Encoding::kFlat) {
    const FlatRange& slice = stage.slices.at(param)[at.dp];
    if (slice.begin == slice.end) return pickle::kNoId;
  }
  Document& doc = file.document;
  const Id state = doc.add_container(Type::kDict);
  for (const size_t index : found->second)
    doc.set(state, target_.catalog.tensors[index].state,
            add_value(file, stage, at, index, mesh));
  const std::string prefix = kStatePrefix + param + ".";
  for (const Object* value : values_) {
    if (value->name.starts_with(prefix))
      doc.set(state, value->name.substr(prefix.size()),
              doc.import(*value->document, value->node));
  }
  return state;
}

Id OptimizerWriter::add_groups(Document& doc, const Stage& stage) const {
  const Document& from = *groups_->document;
  std::unordered_map<Id, Id> numbered;
  int64_t next = 0;
  const auto groups = from.items(groups_->node);
  for (size_t g = 0; g < stage.groups.size(); ++g) {
    std::vector<Id> numbers;
    for (size_t i = 0; i < stage.groups[g].size(); ++i)
      numbers.push_back(doc.add_int(next++));
    numbered.emplace(from.find(groups[g], "params"),
                     doc.add_container(Type::kList, numbers));
  }
  return doc.import(from, groups_->node, numbered);
}

void OptimizerWriter::write_file(const Stage& stage, const Coordinates& at,
                                 const std::string& directory) {
  FileBuilder file(at);
  Document& doc = file.document;
  const Id mesh =
      encoding_ == Encoding::kDTensor
          ? add_mesh(doc, {device_, grid_.tp, at.tp, grid_.dp, at.dp})
          : pickle::kNoId;
  const Id states = doc.add_container(Type::kDict);
  int64_t number = 0;
  for (const auto& group : stage.groups) {
    for (const std::string& param : group) {
      const Id state = add_state(file, stage, at, param, mesh);
      if (state != pickle::kNoId) doc.set(states, doc.add_int(number), state);
      ++number;
    }
  }
  const Id root = doc.add_container(Type::kDict);
  doc.set(root, "state", states);
  doc.set(root, "param_groups", add_groups(doc, stage));
  for (const Object& object : source_.objects) {
    const std::string& name = object.name;
    if (!name.starts_with(kObjectPrefix) || name.starts_with(kStatePrefix) ||
        name == kGroupsObject || name == kDeviceObject ||
        !pickle::storages_below(*object.document, object.node).empty())
      continue;
    doc.set(root, name.substr(std::string_view(kObjectPrefix).size()),
            doc.import(*object.document, object.node));
  }
  file.finish(target_, root, io::join(directory, at.path()));
}

}  // namespace

void write_optimizer(const Catalog& source, const Topology& topology,
                     const std::vector<std::vector<std::string>>& order,
                     const std::string& directory, Target& target) {
  OptimizerWriter(source, topology, target).write(order, directory);
}

}  // namespace ckpt::fairseq2
