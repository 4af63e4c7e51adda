// SPDX-License-Identifier: Apache-2.0
// Writes back a torch source's nesting: the value tree with placeholders for
// the tensors that stay, without the values that were left out. Private to this
// room.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "ckpt/catalog.h"
#include "containers/torch/file_plan.h"
#include "lib/pickle/value.h"

namespace ckpt::torch {

struct Rewritten {
  pickle::Document document;
  pickle::Id root = pickle::kNoId;
  std::vector<std::string> notes;  // tensors that could not stay in place
};

// slots[i] is the tensor source.tensors[i]. Tensors without a place in the
// skeleton go into the outermost dict under their full names. Nothing if the
// skeleton is of no use: it has none of the tensors, or no dict to add one to.
std::optional<Rewritten> rewrite_skeleton(const Catalog& source,
                                          std::span<const TensorSlot> slots);

}  // namespace ckpt::torch
