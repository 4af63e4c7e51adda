// SPDX-License-Identifier: Apache-2.0
// An optimizer's state on its way into another dialect. Adam's moments are
// elementwise: they are cut and fused as their parameters are.
//
//   transformers                          Megatron
//   ….q_proj.weight.exp_avg  ┐            optimizer.state.exp_avg.
//   ….k_proj.weight.exp_avg  ├──────────►   ….linear_qkv.weight
//   ….v_proj.weight.exp_avg  ┘
//   ….q_proj.weight.step, …  ──────────►  param_groups[i]["step"]
//   ….q_proj.weight, …       ──────────►  optimizer.state.param.…, in f32
//
// The way back: main weights are the model, since torch's Adam has no others;
// that the weights in use are their roundings is proven.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/runs/adam.h"

namespace ckpt::families {

inline constexpr char kMainState[] = "param";

struct Optimizer {
  // exp_avg, exp_avg_sq, kMainState: tensors of the model's kind, under the
  // names of their parameters.
  std::map<std::string, std::vector<Tensor>> states;
  std::vector<runs::AdamGroup> groups;  // values of `document`
  std::shared_ptr<pickle::Document> document =
      std::make_shared<pickle::Document>();
  double step = 0;
};

// The parameters of the source that one of the target is made of.
using Parents = std::map<std::string, std::vector<std::string>>;

// True if there is any state of Kind::optim.
bool has_optimizer(const Catalog& source);

// Megatron's, before its names become canonical: one tensor for each state and
// parameter, one count of steps.
void gather_megatron(Catalog& source);

// Takes the state out of a catalog whose model has transformers' names, or
// Megatron's canonical ones. Throws unfaithful_error for what is not Adam's or
// does not belong to a parameter.
Optimizer take_optimizer(Catalog& source, std::string_view from);

// Gives a translated model (`parents`: what its parameters were made of) the
// translated state. Throws unfaithful_error where parameters that become one
// have other options, and where a parameter is new.
void put_in_megatron(Catalog& target, Optimizer optimizer,
                     const Parents& parents);
void put_in_transformers(Catalog& target, Optimizer optimizer,
                         const Parents& parents);

}  // namespace ckpt::families
