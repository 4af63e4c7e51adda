// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "ckpt/error.h"
#include "formats/format.h"
#include "formats/runs/ranks/dtensor_write.h"
#include "formats/runs/write/composing.h"
#include "lib/text/format.h"

namespace ckpt::runs {

using pickle::Document;
using pickle::Id;
using pickle::Type;
using text::printable;

void Composing::add_plain() {
  Nest nest(source_);
  for (const size_t t : model()) nest.add({source_.tensors[t].name}, t);
  Catalog weights = nest.take();
  weights.skeleton.reset();
  Layout layout;
  layout.format = "safetensors";
  layout.max_shard_size = layout_.max_shard_size;
  place(formats::find_format("safetensors").writer->lay_out(weights, layout),
        nest.of(), "");
  if (adam_.states.empty()) return;
  const std::vector<std::string> order = known_order(source_);
  named_groups_ = order.empty() || !shows_numbers(order);
  add_numbered();
}

// True if the order that a reader of the model finds is that of the numbers.
// The Trainer's groups are always of that order.
bool Composing::shows_numbers(const std::vector<std::string>& order) const {
  return form_.grouping != Grouping::kSource || follow(groups_, order);
}

// {"state": {0: {"step": …}}, "param_groups": [{…, "params": [0, 1]}]}.
// `slot`: the node of a tensor of the source.
Id Composing::numbered(Document& document, const Slot& slot) const {
  const Id states = document.add_container(Type::kDict);
  const Id list = document.add_container(Type::kList);
  int64_t number = 0;
  for (const AdamGroup& group : groups_) {
    const Id params = document.add_container(Type::kList);
    for (const std::string& param : group.params) {
      const Id id = document.add_int(number++);
      document.append(params, id);
      const auto found = adam_.states.find(param);
      if (found == adam_.states.end()) continue;
      const Id dict = document.add_container(Type::kDict);
      for (const auto& [state, index] : found->second)
        document.set(dict, state, slot(index));
      document.set(states, id, dict);
    }
    const Id dict = document.add_container(Type::kDict);
    for (const auto& [name, value] : options_of(document, group))
      document.set(dict, name, value);
    document.set(dict, "params", params);
    if (named_groups_) {
      const Id names = document.add_container(Type::kList);
      for (const std::string& param : group.params)
        document.append(names, document.add_string(param));
      document.set(dict, "param_names", names);
    }
    document.append(list, dict);
  }
  const Id root = document.add_container(Type::kDict);
  document.set(root, "state", states);
  document.set(root, "param_groups", list);
  return root;
}

void Composing::add_numbered() {
  Document document;
  std::vector<torch::TensorSlot> slots;
  std::vector<size_t> of;
  const Id root = numbered(document, [&](size_t index) {
    const Tensor& tensor = source_.tensors[index];
    slots.push_back({.dtype = tensor.dtype, .shape = tensor.shape});
    of.push_back(index);
    return torch::add_placeholder(document, slots.size() - 1);
  });
  place_file(document, root, slots, of, std::string(form_.optimizer_at));
}

// verl: the state dicts of each rank. The model's is in module order, which
// numbers its parameters; then come buffers and repeats.
void Composing::add_rank_files() {
  std::map<std::string, size_t> left;
  for (const size_t t : model()) left.emplace(source_.tensors[t].name, t);
  std::vector<size_t> of;
  for (const std::string& name : module_order(form_, adam_, source_)) {
    const auto found = left.find(name);
    if (found == left.end())
      throw unfaithful_error(
          {source_.path, printable(name)},
          "is trained as one parameter and stored in parts: {} saves what "
          "it trains",
          form_.trainer)
          .with_hint("--trainer hf_trainer with --dp 1 keeps the parts");
    of.push_back(found->second);
    left.erase(found);
  }
  for (const auto& [name, index] : left) of.push_back(index);
  place(lay_out_dtensors(source_, of, std::string(form_.model_at), ranks_,
                         [&](Document& document, const std::vector<Id>& nodes) {
                           std::vector<Id> pairs;
                           for (size_t i = 0; i < of.size(); ++i) {
                             pairs.push_back(document.add_string(
                                 source_.tensors[of[i]].name));
                             pairs.push_back(nodes[i]);
                           }
                           return torch::add_ordered_dict(document, pairs);
                         }),
        of, "");
  if (!adam_.states.empty()) add_rank_optimizer();
}

void Composing::add_rank_optimizer() {
  std::vector<size_t> of;
  std::map<size_t, size_t> position;
  for (const auto& [param, states] : adam_.states)
    for (const auto& [state, index] : states) {
      position.emplace(index, of.size());
      of.push_back(index);
    }
  place(lay_out_dtensors(source_, of, std::string(form_.optimizer_at), ranks_,
                         [&](Document& document, const std::vector<Id>& nodes) {
                           return numbered(document, [&](size_t index) {
                             return nodes[position.at(index)];
                           });
                         }),
        of, "");
}

}  // namespace ckpt::runs
