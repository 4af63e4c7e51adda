// SPDX-License-Identifier: Apache-2.0
// Translates an optimizer's state into another dialect. Adam's moments are
// elementwise: they are cut and fused like their parameters.
//
//   transformers                          Megatron
//   ….q_proj.weight.exp_avg  ┐            optimizer.state.exp_avg.
//   ….k_proj.weight.exp_avg  ├──────────►   ….linear_qkv.weight
//   ….v_proj.weight.exp_avg  ┘
//   ….q_proj.weight.step, …  ──────────►  param_groups[i]["step"]
//   ….q_proj.weight, …       ──────────►  optimizer.state.param.…, in f32
//
// On the way back the main weights become the model, since torch's Adam has no
// others; it is proven that the weights in use are their roundings.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/runs/optimizer/adam.h"

namespace ckpt::families {

inline constexpr char kMainState[] = "param";

struct Optimizer {
  // exp_avg, exp_avg_sq, kMainState: tensors of kind model, under the names of
  // their parameters.
  std::map<std::string, std::vector<Tensor>> states;
  std::vector<runs::AdamGroup> groups;  // values of `document`
  std::shared_ptr<pickle::Document> document =
      std::make_shared<pickle::Document>();
  double step = 0;
};

// For each parameter of the target, the source's parameters that it is made
// from.
using Parents = std::map<std::string, std::vector<std::string>>;

// True if there is any state of Kind::optim.
bool has_optimizer(const Catalog& source);

// Gathers Megatron's state before names become canonical: one tensor for each
// state and parameter, one step count.
void gather_megatron(Catalog& source);

// Takes the state out of a catalog whose model has transformers' names or
// Megatron's canonical ones. Throws unfaithful_error for state that is not
// Adam's or belongs to no parameter.
Optimizer take_optimizer(Catalog& source, std::string_view from);

// Gives a translated model (`parents`: what its parameters are made from) the
// translated state. Throws unfaithful_error if parameters that become one have
// different options, or if a parameter is new.
void put_in_megatron(Catalog& target, Optimizer optimizer,
                     const Parents& parents);
void put_in_transformers(Catalog& target, Optimizer optimizer,
                         const Parents& parents);

}  // namespace ckpt::families
