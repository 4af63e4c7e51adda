// SPDX-License-Identifier: Apache-2.0
// What the ranks' files of a legacy checkpoint hold besides tensors, by the
// names of the catalog's objects, and where its optimizers are.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "lib/pickle/value.h"

namespace ckpt::megatron {

inline constexpr std::string_view kModelObject = "model.keys";
inline constexpr std::string_view kStatesObject = "model._extra_state.";
inline constexpr std::string_view kOptimizerObject = "optimizer";
inline constexpr std::string_view kDtypesObject = "distrib_optim.dtypes";

// Kinds of entries in the object "model.keys".
enum class KeyKind : int64_t {
  kTensor = 0,
  kValue = 1,  // None or an empty state: the same on all ranks
  kState = 2,  // in the objects of the ranks
};

// True for a rank's own values, which are dropped when the topology changes.
bool is_rank_key(std::string_view key);

// The optimizers of a rank: the items of a list, the values of a dict with
// numeric keys, or the value itself.
std::vector<pickle::Id> optimizers_in(const pickle::Document& document,
                                      pickle::Id node);
// The inner dict with state and param_groups.
pickle::Id inner_optimizer(const pickle::Document& document, pickle::Id node);

}  // namespace ckpt::megatron
