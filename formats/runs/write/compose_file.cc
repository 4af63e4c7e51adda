// SPDX-License-Identifier: Apache-2.0
// Lightning's file, all of it in one pickle:
//
//   {"epoch": 0, "global_step": 10, "pytorch-lightning_version": "2.6.6",
//    "state_dict": OrderedDict(name -> tensor),     as the module has it
//    "loops": {…}, "callbacks": {…},
//    "optimizer_states": [{"state": {0: {…}}, "param_groups": […]}],
//    "lr_schedulers": [{…}], …}
//
// Its folder has the same values, without model and optimizer, in meta.pt.
#include <fmt/format.h>

#include <map>

#include "ckpt/error.h"
#include "formats/runs/optimizer/preorder.h"
#include "formats/runs/ranks/dtensor_write.h"
#include "formats/runs/write/composing.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::runs {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;
using text::printable;

// The model's tensors: parameters in module order where the family is known,
// then what has no number. Else as the source has them.
std::vector<size_t> Composing::in_module_order() {
  std::map<std::string, size_t> left;
  for (const size_t t : model()) left.emplace(source_.tensors[t].name, t);
  std::vector<size_t> of;
  for (const std::string& name : known_order(source_)) {
    const auto found = left.find(name);
    if (found == left.end()) break;  // stored in parts
    of.push_back(found->second);
    left.erase(found);
  }
  for (const size_t t : model())
    if (left.contains(source_.tensors[t].name)) of.push_back(t);
  std::vector<const Tensor*> stored;
  stored.reserve(of.size());
  for (const size_t t : of) stored.push_back(&source_.tensors[t]);
  std::vector<std::string> names;
  names.reserve(stored.size());
  for (const Tensor* tensor : stored) names.push_back(tensor->name);
  named_groups_ =
      !doubt_in_order(stored).empty() ||
      !(shows_numbers(names) || shows_numbers(known_order(source_)));
  return of;
}

void Composing::add_one_file() {
  Document document;
  std::vector<torch::TensorSlot> slots;
  std::vector<size_t> of = in_module_order();
  const std::vector<uint32_t> ties = ties_of(source_, of);
  std::vector<Id> pairs;
  const auto slot_of = [&](size_t index) {
    const Tensor& tensor = source_.tensors[index];
    slots.push_back({.dtype = tensor.dtype, .shape = tensor.shape});
    return torch::add_placeholder(document, slots.size() - 1);
  };
  for (size_t i = 0; i < of.size(); ++i) {
    pairs.push_back(document.add_string(source_.tensors[of[i]].name));
    pairs.push_back(slot_of(of[i]));
    if (ties[i]) slots.back().tie = ties[i];
  }
  const Id weights = torch::add_ordered_dict(document, pairs);
  const Id root = document.add_container(Type::kDict);
  for (const WrittenValue& row : writes_.values)
    if (const auto entries = document.as_pairs(value_of(document, row)))
      for (size_t i = 0; i + 1 < entries->size(); i += 2)
        document.set(root, (*entries)[i], (*entries)[i + 1]);
  document.set(root, form_.model_key, weights);
  const Id optimizers = document.add_container(Type::kList);
  if (!adam_.states.empty())
    document.append(optimizers, numbered(document, [&](size_t index) {
                      of.push_back(index);
                      return slot_of(index);
                    }));
  document.set(root, form_.optimizer_key, optimizers);
  place_file(document, root, slots, of, "");
}

Id Composing::own_value(Document& document) {
  return io::is_file(source_.path) ? values_of_file(document)
                                   : values_of_folder(document);
}

Id Composing::values_of_folder(Document& document) {
  for (const Object& object : source_.objects) {
    if (object.name != "meta" || !object.document) continue;
    const auto value =
        import_value(document, source_, *object.document, object.node);
    if (!value || !document.is(*value, Type::kDict)) break;
    scheduled_ = true;
    return *value;
  }
  throw unfaithful_error({source_.path, {}},
                         "has no meta.pt whose values can be carried")
      .with_hint("--to dcp keeps model and optimizer by name");
}

// What is neither model nor optimizer. Large tensors of callbacks and of the
// user's own are no values.
Id Composing::values_of_file(Document& document) {
  const Document& from = *source_.skeleton->document;
  const auto entries = from.as_pairs(source_.skeleton->root);
  const Id root = document.add_container(Type::kDict);
  std::string left;
  for (size_t i = 0; entries && i + 1 < entries->size(); i += 2) {
    const Id key = (*entries)[i];
    if (!from.is(key, Type::kString)) continue;
    const std::string_view word = from.text(key);
    if (word == "state_dict" || word == "optimizer_states") continue;
    if (const auto value =
            import_value(document, source_, from, (*entries)[i + 1])) {
      document.set(root, word, *value);
      scheduled_ = scheduled_ || word == "lr_schedulers";
    } else {
      left += (left.empty() ? "" : ", ") + printable(word);
    }
  }
  if (!left.empty())
    warn("reset", fmt::format("lightning starts afresh: {} (tensors among the "
                              "values)",
                              left));
  return root;
}

}  // namespace ckpt::runs
