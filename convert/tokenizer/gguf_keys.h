// SPDX-License-Identifier: Apache-2.0
// One key of a GGUF header, in the order in which they are written.
#pragma once

#include <string>
#include <vector>

#include "models/numbers.h"

namespace ckpt::families {

struct GgufKey {
  std::string key;
  std::string
      type;  // "u32", "f32", "bool", "str"; of lists "arr:str", "arr:u8"
  Json value;
};
using GgufKeys = std::vector<GgufKey>;

}  // namespace ckpt::families
