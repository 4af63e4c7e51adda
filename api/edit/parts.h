// SPDX-License-Identifier: Apache-2.0
// The state dicts in a file that a script wrote. A model is rarely alone in it:
//
//   {"model": {...}, "ema": {...}, "optimizer": {...}, "epoch": 3}
//
// has the parts "model" and "ema". Their place is told by the nesting that the
// file has, never by words: any key may lead to a state dict.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::library {

struct StateDict {
  std::string name;  // "ema", "checkpoint.state_dict"; "" is the top
  uint64_t tensors = 0;
  uint64_t parameters = 0;  // one that has several names counts once
  uint64_t bytes = 0;       // likewise
};

// The parts that may be a model, in the file's order. None if the source has
// no nesting, or one that does not tell a module's name from a dict's key.
std::vector<StateDict> parts_of(const Catalog& catalog);

// What --part can take: these, or the models of a pipeline or of a step.
std::vector<StateDict> choices_of(const Catalog& catalog);

// What --part calls it: its name, "." for the top.
std::string part_word(const StateDict& part);

// --part NAME: keeps what is in that state dict, under the names that it has
// there, as the model. The last key of its name is enough if no other part has
// it. Throws unfaithful_error, with the names that there are, if none is it.
// Returns a line about what was left out.
std::string keep_part(Catalog& catalog, const std::string& name);

struct OnlyPart {
  std::string place;     // a line about where it was; "" if at the top already
  std::string left_out;  // a warning of tensors that were beside it, or ""
};
// Brings a source's only part to the top, for a target that has no nesting.
// Throws unfaithful_error if there are several parts.
// A DCP with more than the model in it stays as it is: its whole state has a
// place in a directory of safetensors, from which it comes back.
OnlyPart keep_only_part(Catalog& catalog);

// For a comparison with what was written so: gives the tensors of the only part
// the names that they have in it; what is beside it is not the model. Returns
// true if that changed names.
bool name_as_only_part(Catalog& catalog);

}  // namespace ckpt::library
