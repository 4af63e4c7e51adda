// SPDX-License-Identifier: Apache-2.0
// A backbone in another class than the family's rules are for:
//
//   LlamaForCausalLM           model.layers.0.…
//   LlamaModel                 layers.0.…
//   LlamaForQuestionAnswering  transformer.layers.0.…
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "models/family.h"

namespace ckpt::families {

// The class that config.json names first in "architectures"; "" if none.
std::string_view class_of(const Json& config);

// True if the class that config.json names is another than those that the
// family's rules are for: a bare backbone, a classifier.
bool is_other_class(const Json& config, const Family& family);

// What a class of config.json adds to its backbone for a task, as transformers'
// generic classes do: a Linear, "score" of XForSequenceClassification.
struct TaskHead {
  std::string_view module;
  bool bias = false;
  uint64_t rows = 0;  // labels
};

std::optional<TaskHead> task_head(const Json& config);

// A tensor that others put beside the model and transformers leaves aside: of
// TRL's value head ("v_head."), or of the layers for tokens after the next
// ("mtp.", or numbered after the model's own as config.json announces).
bool is_left_aside(const Json& config, std::string_view name);

// What a wrapper put before all of these names ("module."), whatever model it
// is: no module of transformers is called so.
std::string wrapper_of(const std::vector<Tensor>& tensors);

// What all of these names have before them, so that most go on with one of
// `words`; "" where most begin with one, nothing if they don't.
std::optional<std::string> words_before(const std::vector<Tensor>& tensors,
                                        const std::vector<std::string>& words);

// What these names have before them, and what the family's model has instead.
struct Backbone {
  std::string here;  // "transformer."; "": nothing, all names lack `model`
  std::string model;

  explicit operator bool() const { return here != model; }
  // The name that the family's model has; any other name stays.
  std::string to_model(std::string_view name) const;
  std::string to_here(std::string_view name) const;
};

// True if some of these are names of the family's layers as they are.
bool has_layers_of(const Family& family, const std::vector<Tensor>& tensors);

// Both are empty if no other names would be more of the family's. A class that
// the rules are for has its own names, or all of its base model's.
Backbone find_backbone(const Json& config, const Family& family,
                       const std::vector<Tensor>& tensors);

}  // namespace ckpt::families
