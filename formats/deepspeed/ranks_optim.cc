// SPDX-License-Identifier: Apache-2.0
#include "containers/torch/tensors.h"
#include "formats/deepspeed/ranks_parts.h"
#include "lib/text/format.h"

namespace ckpt::deepspeed {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;
using text::printable;

void Ranks::add_optim(uint32_t rank) {
  Document document;
  std::vector<torch::TensorSlot> slots;
  std::vector<Placed> placed;
  Substitutes substitutes;
  const Id fp32 = document.add_container(Type::kList);
  const Id states = document.add_container(Type::kDict);
  std::vector<Vector> vectors;
  for (size_t g = 0; g < groups_.size(); ++g) {
    vectors.push_back(third() ? parts_of(groups_[g], rank, ranks_)
                              : partition_of(groups_[g], rank, ranks_));
    const Vector& vector = vectors.back();
    // ZeRO 1, 2: masters go without the padding at their end.
    document.append(fp32, add_vector(document, vector, {}, !third(), slots,
                                     placed, groups_[g]));
    if (const Id state = state_of(from_[g]); state != kNoId)
      document.set(
          states, document.add_int(static_cast<int64_t>(g)),
          add_states(document, state, vector, slots, placed, groups_[g]));
  }
  const Document& old = values();
  const auto instead = [&](Id node, Id with) {
    if (node != kNoId) substitutes[node] = with;
  };
  instead(old.find(state_dict(), third() ? "fp32_flat_groups"
                                         : "single_partition_of_fp32_groups"),
          fp32);
  instead(old.find(optimizer(), "state"), states);
  if (!third()) add_places(document, vectors, substitutes);
  if (third()) add_members(document, substitutes);
  const Id root = document.import(old, old.root(), substitutes);
  if (old.as_int(old.find(state_dict(), "partition_count")))
    document.set(document.find(root, "optimizer_state_dict"), "partition_count",
                 document.add_int(ranks_));
  const std::string name = name_of_rank(optim_name_, rank);
  torch::FilePlan plan =
      torch::plan_file(document, root, slots, torch::archive_root_of(name));
  place(placed, add_file(name, plan), plan);
  target_.files.push_back(std::move(plan.file));
}

Id Ranks::state_of(size_t group) const {
  const auto pairs = values().as_pairs(values().find(optimizer(), "state"));
  for (size_t i = 0; pairs && i + 1 < pairs->size(); i += 2)
    if (values().as_int((*pairs)[i]) == static_cast<int64_t>(group))
      return (*pairs)[i + 1];
  return kNoId;
}

Id Ranks::add_vector(Document& document, const Vector& vector,
                     const std::string& state, bool lean,
                     std::vector<torch::TensorSlot>& slots,
                     std::vector<Placed>& placed,
                     const Parameters& group) const {
  const DType dtype = tensor_of(group.front().name, state).dtype;
  Placed one{.slot = slots.size(),
             .item = element_size(dtype),
             .vector = vector,
             .state = state};
  if (lean) one.vector.size = vector.used;
  slots.push_back({.dtype = dtype, .shape = {one.vector.size}});
  placed.push_back(std::move(one));
  return torch::add_placeholder(document, slots.size() - 1);
}

Id Ranks::add_states(Document& document, Id state, const Vector& vector,
                     std::vector<torch::TensorSlot>& slots,
                     std::vector<Placed>& placed,
                     const Parameters& group) const {
  const Id dict = document.add_container(Type::kDict);
  const auto pairs = values().as_pairs(state);
  for (size_t i = 0; pairs && i + 1 < pairs->size(); i += 2) {
    const Id key = (*pairs)[i], value = (*pairs)[i + 1];
    if (!values().is(key, Type::kString))
      refuse(optim_->path, {}, "has a state without a name");
    const std::string name(values().text(key));
    const auto ref = torch::as_tensor(values(), value, optim_->storages, name);
    Id node = kNoId;
    if (!ref) {
      node = document.import(values(), value);
    } else if (ref->shape.empty() ||
               (name == "step" && element_count(ref->shape) == 1u)) {
      check_alike(group, name);
      placed.push_back({.slot = slots.size(),
                        .item = element_size(ref->dtype),
                        .vector = {},
                        .state = name,
                        .scalar = true,
                        .group = &group});
      slots.push_back({.dtype = ref->dtype, .shape = ref->shape});
      node = torch::add_placeholder(document, slots.size() - 1);
    } else {
      node = add_vector(document, vector, name, false, slots, placed, group);
    }
    document.set(dict, name, node);
  }
  return dict;
}

// A group has one value for all its parameters.
void Ranks::check_alike(const Parameters& group,
                        const std::string& state) const {
  std::string first;
  for (const NamedShape& one : group) {
    const Tensor& tensor = tensor_of(one.name, state);
    const Extent& extent = tensor.pieces.at(0).extent;
    std::string now = torch::read_content(source_, extent.file, extent.offset,
                                          byte_size(tensor));
    if (&one == &group.front()) first = now;
    if (now != first)
      refuse(optim_->path, one.name,
             "has another " + printable(state) + " than its group");
  }
}

// ZeRO 1, 2: padding, partitions, and where each parameter's elements are.
void Ranks::add_places(Document& document, const std::vector<Vector>& vectors,
                       Substitutes& substitutes) const {
  const Id paddings = document.add_container(Type::kList);
  const Id counts = document.add_container(Type::kList);
  const Id mappings = document.add_container(Type::kList);
  for (const Vector& vector : vectors) {
    document.append(
        paddings,
        document.add_int(static_cast<int64_t>(vector.size - vector.used)));
    document.append(counts, document.add_int(ranks_));
    std::vector<Id> pairs;
    for (const Run& run : vector.runs) {
      const Id fields = document.add_container(Type::kDict);
      document.set(fields, "numel",
                   document.add_int(
                       static_cast<int64_t>(run.range.end - run.range.begin)));
      document.set(fields, "start",
                   document.add_int(static_cast<int64_t>(run.at)));
      pickle::Call call;
      call.how = pickle::How::kNewObj;
      call.callable = document.add_global("deepspeed.utils.tensor_fragment",
                                          "fragment_address");
      call.args = document.add_container(Type::kTuple);
      call.state = fields;
      pairs.push_back(document.add_string(run.parameter->name));
      pairs.push_back(document.add_call(call));
    }
    document.append(mappings, torch::add_ordered_dict(document, pairs));
  }
  const auto instead = [&](std::string_view key, Id with) {
    const Id node = values().find(state_dict(), key);
    if (is_list(values(), node)) substitutes[node] = with;
  };
  instead("group_paddings", paddings);
  instead("partition_count", counts);
  instead("param_slice_mappings", mappings);
}

// ZeRO 3: the sub-groups of each group.
void Ranks::add_members(Document& document, Substitutes& substitutes) const {
  const Id list = values().find(optimizer(), "param_groups");
  const auto groups = values().items(list);
  for (size_t i = 0; i < groups.size(); ++i) {
    const Id numbers = document.add_container(Type::kList);
    for (const size_t g : members_[i])
      document.append(numbers, document.add_int(static_cast<int64_t>(g)));
    const Id node = values().find(groups[i], "params");
    if (node != kNoId) substitutes[node] = numbers;
  }
}

}  // namespace ckpt::deepspeed
