// SPDX-License-Identifier: Apache-2.0
// A parameter of the model, in the state dicts of ranks.
#pragma once

#include <string>
#include <vector>

#include "formats/megatron/legacy/objects.h"
#include "lib/pickle/value.h"

namespace ckpt::megatron {

// An entry of the target's state dicts.
struct LegacyKey {
  std::vector<std::string> path;  // with the model's numbers
  std::string name;               // joined
  std::string tensor;             // in the catalog; a copy's: the embedding's
  KeyKind kind = KeyKind::kTensor;
  pickle::Id value = pickle::kNoId;  // kValue: in the object "model.keys"
};

}  // namespace ckpt::megatron
