// SPDX-License-Identifier: Apache-2.0
// What the trainers' own models (torchtitan's, nanotron's) have in common when
// their tensors become transformers'. Private to this room.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "models/view.h"

namespace ckpt::runs {

// The parameter that a tensor is, or belongs to.
const std::string& parameter_of(const Tensor& tensor);
// Names the tensor, or the state, after that parameter.
void set_parameter(Tensor& tensor, std::string name);
// Replaces shape and pieces.
void into(const families::View& view, Tensor& tensor);

// The trainer whose own models' names the tensors have: torchtitan, nanotron;
// "" if they are nobody's, or transformers'.
std::string_view owner_of_names(const Catalog& catalog);

// Replaces them by transformers' names and arrangement. Throws unfaithful_error
// if no file gives the model's numbers.
void take_transformers_names(Catalog& catalog);

// True for names of nanotron's models.
bool has_nanotron_names(const Catalog& source);

// nanotron's Llama and Qwen2 as transformers' models, by the step's
// model_config.json (nanotron_config.h): names, the projections that it trains
// as one, and rotary rows. A config.json is added if none is beside the step.
// Moments are elementwise, so they are arranged like their weights.
//
//   model.decoder.0.pp_block.attn.qkv_proj    self_attn.{q,k,v}_proj, in rows
//     rearranged where rotary pairs are adjacent
//   model.decoder.0.pp_block.mlp.gate_up_proj    mlp.{gate,up}_proj, in rows
//
// Throws unfaithful_error for its other models, without the number of heads,
// and for shapes that are not of them; the catalog is unchanged then.
void from_nanotron(Catalog& source);

// What transformers trains where nanotron trains that parameter; nothing for
// other names.
std::vector<std::string> parts_of_nanotron(const std::string& parameter);

// What the other of a trainer and transformers calls a trained parameter, in
// any model; several for one that the other trains in parts.
std::vector<std::string> names_of_other(const std::string& parameter);

}  // namespace ckpt::runs
