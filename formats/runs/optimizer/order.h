// SPDX-License-Identifier: Apache-2.0
// The order in which a model registers its parameters. torch's optimizers
// number them in this order; a safetensors file is sorted by name and has lost
// it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::runs {

// A parameter as the optimizer knows it. It may differ from the file's:
// transformers 5 trains [experts, 2 * width, hidden] but saves each expert's
// gate and up separately.
struct Parameter {
  std::string name;
  Shape shape;
  bool decays = true;  // by the Trainer's rule: no bias, no norm
  // False: it may be of an nn.LayerNorm, whose name says nothing ("ln_1").
  bool certain = true;
};

struct ParameterOrder {
  std::vector<Parameter> parameters;
  std::string why;  // "the modules of qwen2"; empty without an order
};

// What config.json says; "" and 0 if there is none.
struct ModelFacts {
  std::string type;      // model_type
  uint64_t version = 0;  // transformers_version, the first number …
  uint64_t minor = 0;    // … and the second
};

// The family's order (orders.json). Without a model_type, all families that
// know every name must agree. Returns nothing and sets `why_not` if a name is
// in no known module.
std::optional<ParameterOrder> family_order(
    std::span<const Tensor* const> tensors, const ModelFacts& facts,
    std::string& why_not);

// The tensors in the given order, that of a pickled state dict, without repeats
// of tied tensors and without integer tensors.
ParameterOrder stored_order(std::span<const Tensor* const> tensors);
// FSDP1's state dict has a tied output layer under its own name; the optimizer
// has the embedding alone. Nothing if there is no head of an embedding's shape.
std::optional<ParameterOrder> without_tied_head(const ParameterOrder& order);

// What --assume-order asks for, instead of what is proven: the rule, "decay" or
// "module", and the order: the model's tensors as they come, or as in a FILE of
// names, one per line. Throws usage_error for a file that can't be read or a
// name that the model does not have.
struct Asked {
  std::string rule;
  ParameterOrder order;
};
Asked asked_order(const std::string& text,
                  std::span<const Tensor* const> model);
// Throws if `text` is neither a rule nor a file.
void check_order(const std::string& text);

// The Trainer's get_decay_parameter_names, by name alone.
bool decays(const std::string& name);

}  // namespace ckpt::runs
