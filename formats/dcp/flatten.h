// SPDX-License-Identifier: Apache-2.0
// A nested state dict as flat keys, the way DefaultSavePlanner of torch >= 2.4
// flattens it.
//
//   {"model": {"a.b": tensor}, "groups": [{"lr": 0.1}], "seed": (1, 2)}
//   model.a.b    ("model", "a.b")           tensor
//   groups.0.lr  ("groups", 0, "lr")        value
//   seed         ("seed",)                  value
//
// Mappings are always descended, a list if it holds a mapping or a tensor;
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
  const Object* object = nullptr;  // that it is, or is a part of
  uint32_t node = 0;               // in the object's document
};

struct Flattened {
  // Of tensors and values that have a path, in the order of the dict.
  std::vector<std::pair<std::string, Path>> paths;
  std::vector<FlatValue> values;
  std::vector<Problem> problems;
};

// Every object of `source` is in the values, whole or in parts; tensors keep
// their names. Without a skeleton there are no paths.
Flattened flatten(const Catalog& source);

}  // namespace ckpt::dcp
