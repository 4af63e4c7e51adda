// SPDX-License-Identifier: Apache-2.0
// A nested state dict as flat keys, the way torch's DefaultSavePlanner (>= 2.4)
// flattens it.
//
//   {"model": {"a.b": tensor}, "groups": [{"lr": 0.1}], "seed": (1, 2)}
//   model.a.b    ("model", "a.b")           tensor
//   groups.0.lr  ("groups", 0, "lr")        value
//   seed         ("seed",)                  value
//
// Mappings are always descended into, lists if they hold a mapping or a tensor;
// tuples, sets and the rest are values. Also used by olmo_core.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/dcp/metadata.h"

namespace ckpt::dcp {

using Path = std::vector<PathElement>;

struct FlatValue {
  std::string name;
  const Object* object = nullptr;  // that it is, or is part of
  uint32_t node = 0;               // in the object's document
};

struct Flattened {
  // The paths of tensors and values that have one, in the order of the dict.
  std::vector<std::pair<std::string, Path>> paths;
  std::vector<FlatValue> values;
  std::vector<Problem> problems;
};

// The values include every object of `source`, whole or in parts; tensors keep
// their names. Without a skeleton there are no paths.
Flattened flatten(const Catalog& source);

}  // namespace ckpt::dcp
