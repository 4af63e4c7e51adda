// SPDX-License-Identifier: Apache-2.0
// The order in which a model registers its parameters. torch's optimizers
// number them so; a safetensors file is sorted by name and has lost it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::runs {

// A parameter as the optimizer knows it. That may be another one than the file
// has: transformers 5 trains [experts, 2 * width, hidden] and saves each
// expert's gate and up on their own.
struct Parameter {
  std::string name;
  Shape shape;
  bool decays = true;  // by the Trainer's rule: no bias, no norm
};

struct ParameterOrder {
  std::vector<Parameter> parameters;
  std::string why;  // "the modules of qwen2"; empty without an order
};

// What config.json says; "" and 0 without one.
struct ModelFacts {
  std::string type;      // model_type
  uint64_t version = 0;  // transformers_version, the first number
};

// By the family's order (orders.json). Without a model_type every family that
// knows all names must agree. Nothing but a reason (`why_not`) if a name is of
// no module that is known.
std::optional<ParameterOrder> family_order(
    std::span<const Tensor* const> tensors, const ModelFacts& facts,
    std::string& why_not);

// As they stand: the order of a pickled state dict. Repeats of tied tensors
// and tensors of integers are left out.
ParameterOrder stored_order(std::span<const Tensor* const> tensors);

// The Trainer's get_decay_parameter_names, by name alone.
bool decays(const std::string& name);

}  // namespace ckpt::runs
