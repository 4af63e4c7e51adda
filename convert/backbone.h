// SPDX-License-Identifier: Apache-2.0
// A backbone that was saved by itself: LlamaModel's names lack the "model."
// that LlamaForCausalLM has before them.
#pragma once

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

// The module that a class of config.json adds to its backbone for a task, as
// transformers' generic classes call it: "score" of XForSequenceClassification.
// "" if the class is none of these.
std::string_view task_head(const Json& config);

// What the names of the family's model have before these; "" if nothing.
std::string_view backbone_prefix(const Json& config, const Family& family,
                                 const std::vector<Tensor>& tensors);

}  // namespace ckpt::families
