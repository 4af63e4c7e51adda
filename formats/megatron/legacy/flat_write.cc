// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ckpt/error.h"
#include "formats/megatron/legacy/states_state.h"

namespace ckpt::megatron {

using pickle::Document;
using pickle::Id;
using pickle::Type;
using Params = std::vector<LegacyParam>;

Id LegacyStatesWriter::State::add_buffer(LegacyFile& file,
                                         const LegacyBuffer& buffer,
                                         const BufferLayout& layout,
                                         const LegacyCoordinates& at) const {
  Document& doc = file.document;
  std::vector<std::string> names;  // of states, in the first one's order
  for (const size_t index : states_of(buffer.params.front()))
    names.push_back(target.tensors[index].state);
  const Id dict = doc.add_container(Type::kDict);
  for (const std::string& name : names) {
    std::optional<LegacyFile::Flat> flat_tensor;
    DType dtype = DType::f32;
    for (size_t i = 0; i < buffer.params.size(); ++i) {
      const LegacyParam& param = buffer.params[i];
      const auto& all = states_of(param);
      const auto index = std::ranges::find_if(all, [&](size_t candidate) {
        return target.tensors[candidate].state == name;
      });
      const Tensor& model = target.tensors[param.index];
      if (index == all.end() || all.size() != names.size() ||
          target.tensors[*index].shape != model.shape)
        throw unfaithful_error({source.path, model.name},
                               "a flat buffer has no place for its optimizer "
                               "state, which is not like that of {}",
                               buffer.params.front().name);
      const Tensor& tensor = target.tensors[*index];
      if (!flat_tensor) {
        dtype = tensor.dtype;
        flat_tensor = file.add_flat(dtype, layout.unpadded);
      }
      if (tensor.dtype != dtype)
        throw unfaithful_error({source.path, tensor.name},
                               "{} in a flat buffer of {}",
                               ckpt::name(tensor.dtype), ckpt::name(dtype));
      file.fill_flat(*flat_tensor, tensor, *index, model.tp, slot_of(param, at),
                     plan.ranks_of(param.expert),
                     layout.joined(layout.slots[i]));
    }
    doc.set(dict, name == kMainWeights ? "param" : name, flat_tensor->node);
  }
  doc.set(dict, "numel_unpadded",
          doc.add_int(static_cast<int64_t>(layout.unpadded)));
  return dict;
}

Id LegacyStatesWriter::State::add_buffers(LegacyFile& file,
                                          const Params& params,
                                          const Params& all,
                                          const LegacyCoordinates& at) const {
  Document& doc = file.document;
  const Id root = doc.add_container(Type::kDict);
  doc.set(root, "buckets_coalesced", doc.add_bool(true));
  int64_t number = 0;
  for (const LegacyBuffer& buffer : split_buffers(params)) {
    uint64_t numel = 0;
    for (const LegacyParam& param : all)
      if (param.chunk == buffer.chunk) numel += param.numel;
    const BufferLayout layout =
        lay_out_buffer(buffer_params(buffer),
                       buffer_rules(facts, at.pp, buffer.chunk, numel,
                                    uint64_t{plan.topology.dp} * plan.cp));
    DType grad = DType::f32;
    for (const auto& [param, known] : dtypes)
      if (param == buffer.dtype) grad = known;
    const Id key = doc.add_container(
        Type::kTuple,
        {torch::add_dtype(doc, buffer.dtype), torch::add_dtype(doc, grad)});
    const Id pair = doc.add_container(
        Type::kDict, {key, add_buffer(file, buffer, layout, at)});
    doc.set(root, doc.add_int(number++), pair);
  }
  return root;
}

bool LegacyStatesWriter::write_flat(Target& target, const Params& params,
                                    const LegacyCoordinates& at,
                                    const std::string& path) const {
  const State& state = *state_;
  if (!state.flat) return false;
  const auto parts = state.split(params);
  LegacyFile file(state.plan.mixers);
  Document& doc = file.document;
  std::vector<Id> all;
  bool any = false;
  for (size_t i = 0; i < parts.size(); ++i) {
    // A rank that is not the first of its replicas has None in its file.
    const bool expert =
        parts.size() > 1 && i + 1 == parts.size() && state.plan.own_experts;
    const bool mine = expert ? at.expert_states : at.dense_states;
    any = any || mine;
    all.push_back(mine ? state.add_buffers(file, parts[i], params, at)
                       : doc.add_none());
  }
  if (!any) return false;
  file.finish(target,
              all.size() == 1 ? all[0] : doc.add_container(Type::kList, all),
              path);
  return true;
}

}  // namespace ckpt::megatron
