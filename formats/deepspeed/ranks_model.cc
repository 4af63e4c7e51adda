// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <utility>

#include "containers/torch/tensors.h"
#include "formats/deepspeed/ranks_parts.h"

namespace ckpt::deepspeed {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;

void Ranks::add_model(uint32_t rank) {
  const ModelRank& model = models_[rank % models_.size()];
  const Document& old = *model.container.document;
  Document document;
  std::vector<torch::TensorSlot> slots;
  Substitutes substitutes;
  std::vector<uint32_t> fragments;
  if (model.dp)
    for (const auto& [name, ref] : model.fragments)
      fragments.push_back(ref.storage);
  SameStorages storages(model.container, opened_, fragments);
  storages.add_slots(document, slots, substitutes);
  std::vector<Placed> placed;
  if (model.dp)
    add_fragments(model, rank, document, slots, substitutes, placed);
  const Id root = document.import(old, old.root(), substitutes);
  if (model.find("dp_world_size") != kNoId)
    document.set(root, "dp_world_size", document.add_int(ranks_));
  if (third() && model.groups.size() == optim_rank_.groups.size())
    document.set(root, "param_shapes", shapes(document));
  const std::string name = name_of_rank(model_name_, rank);
  torch::FilePlan plan =
      torch::plan_file(document, root, slots, torch::archive_root_of(name));
  const uint32_t file = add_file(name, plan);
  place(placed, file, plan);
  std::vector<SameStorages::Use> uses;
  if (rank == 0) place_stored(model, storages, file, plan, uses);
  storages.carry(plan, file_of(model.path), uses);
  target_.files.push_back(std::move(plan.file));
}

// ZeRO 3: the rank's part of each frozen parameter.
void Ranks::add_fragments(const ModelRank& model, uint32_t rank,
                          Document& document,
                          std::vector<torch::TensorSlot>& slots,
                          Substitutes& substitutes,
                          std::vector<Placed>& placed) const {
  const Document& old = *model.container.document;
  const Id dict = model.find("frozen_param_fragments");
  for (const NamedShape& frozen : model.frozen) {
    const Id node = old.find(dict, frozen.name);
    const auto ref =
        torch::as_tensor(old, node, model.container.storages, frozen.name);
    if (!ref) refuse(model.path, frozen.name, "has no fragment");
    Placed one{.slot = slots.size(),
               .item = element_size(ref->dtype),
               .vector = parts_of({frozen}, rank, ranks_),
               .state = {}};
    // The vector's runs point into this list.
    for (Run& run : one.vector.runs) run.parameter = &frozen;
    slots.push_back({.dtype = ref->dtype, .shape = {one.vector.size}});
    substitutes[node] = torch::add_placeholder(document, one.slot);
    placed.push_back(std::move(one));
  }
}

Id Ranks::shapes(Document& document) const {
  const Id list = document.add_container(Type::kList);
  for (const Parameters& group : groups_) {
    std::vector<Id> pairs;
    for (const NamedShape& one : group) {
      pairs.push_back(document.add_string(one.name));
      pairs.push_back(document.add_call(
          document.add_global("torch", "Size"),
          document.add_container(Type::kTuple,
                                 {torch::add_int_tuple(document, one.shape)})));
    }
    document.append(list, torch::add_ordered_dict(document, pairs));
  }
  return list;
}

// Places the catalog's tensors in the model states file: buffers, frozen
// parameters, and all parameters if there is no optimizer.
void Ranks::place_stored(const ModelRank& model, const SameStorages& storages,
                         uint32_t file, const torch::FilePlan& plan,
                         std::vector<SameStorages::Use>& uses) {
  const uint32_t mine = file_of(model.path);
  std::map<uint64_t, std::pair<uint64_t, uint32_t>> known;  // end, tie
  std::map<uint64_t, size_t> first;
  for (size_t t = 0; t < source_.tensors.size(); ++t) {
    const Tensor& tensor = source_.tensors[t];
    Tensor& out = target_.catalog.tensors[t];
    if (tensor.pieces.empty() || tensor.pieces[0].extent.file != mine ||
        !out.pieces.empty())
      continue;
    const Piece& piece = tensor.pieces[0];
    if (tensor.pieces.size() != 1 || piece.flat ||
        !piece.extent.strides.empty() || piece.transform != kNoTransform ||
        piece.box != Box::whole(tensor.shape))
      refuse(model.path, tensor.name, "does not lie in its file as it is");
    out.pieces = tensor.pieces;
    out.pieces[0].extent.file = file;
    const uint64_t bytes = byte_size(tensor);
    if (bytes == 0) continue;
    const uint64_t begin = piece.extent.offset;
    out.pieces[0].extent.offset = storages.moved(plan, begin);
    const auto [it, fresh] =
        known.try_emplace(begin, begin + bytes, uint32_t{0});
    if (fresh) {
      first.emplace(begin, t);
      continue;
    }
    if (it->second.first != begin + bytes)
      refuse(model.path, tensor.name, "shares a part of another's bytes");
    Tensor& other = target_.catalog.tensors[first.at(begin)];
    if (other.tie == 0) other.tie = ++ties_;
    out.tie = other.tie;
  }
  uint64_t at = 0;
  for (const auto& [begin, use] : known) {
    if (begin < at)
      refuse(model.path, source_.tensors[first.at(begin)].name,
             "overlaps with another");
    at = use.first;
    uses.push_back({begin, use.first});
  }
}

}  // namespace ckpt::deepspeed
