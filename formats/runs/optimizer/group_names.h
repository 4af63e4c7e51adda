// SPDX-License-Identifier: Apache-2.0
// Parameters' names for the numbers in an optimizer's groups, where a list
// beside the groups has them:
//
//   DeepSpeed  engine.param_shapes  [{<name>: shape, …}, …]; a number is that
//                                   of a vector, each has several parameters
//   nanotron   optimizer.names      {0: <name>, …}
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "lib/pickle/value.h"

namespace ckpt::runs {

struct GroupNames {
  std::vector<std::vector<std::string>> groups;
  bool of_vectors = false;  // in the live optimizer's order, as flattened
};

// `owner`: "optimizer." of the object "optimizer.param_groups". `numbers`: the
// "params" of each group, in `document`. Nothing if not all of them have names.
std::optional<GroupNames> names_of_groups(const Catalog& source,
                                          std::string_view owner,
                                          const pickle::Document& document,
                                          std::span<const pickle::Id> numbers);

// What the states of these parameters are named: groups have the names that the
// source's trainer trains, states may have been renamed to those of another's,
// and have neither wrappers nor the module that a wrapped model is in. `has`
// knows the states' names; a name that leads to none stays.
std::vector<std::string> names_of_states(
    const std::vector<std::string>& params,
    const std::function<bool(const std::string&)>& has);

// Makes the source's groups "optimizer.param_groups" with names for numbers, as
// one state dict has them, if every parameter with state is in one of them.
// Leaves those of several optimizers as they are.
void put_names_in_groups(Catalog& source);

}  // namespace ckpt::runs
