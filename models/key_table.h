// SPDX-License-Identifier: Apache-2.0
// The shapes of a model's tensors and the number of its layers, from its
// family's key table and its configuration. This reveals missing rows or a
// missing pipeline stage when nothing else does.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ckpt/box.h"
#include "models/config.h"

namespace ckpt::families {

class KeyTable {
 public:
  // Empty for families without a table.
  static KeyTable for_family(const std::string& family, const Config& config);

  // The full shape of a key, if the configuration's fields give it, or fields
  // that fairseq2 derives from one or two of them.
  std::optional<Shape> shape(std::string_view key) const;

 private:
  // By the native name, with {i} for the layer's index.
  std::unordered_map<std::string, Shape> shapes_;
};

}  // namespace ckpt::families
