// SPDX-License-Identifier: Apache-2.0
// What a family's key table says of a model with a given configuration: the
// shapes of its tensors and the number of its layers. A file that lacks rows
// or a whole pipeline stage shows here, when nothing else does.
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

  // The full shape of a key, if the configuration's fields give it, or those
  // that fairseq2 makes of one or two of them.
  std::optional<Shape> shape(std::string_view key) const;

 private:
  // By the native name, with {i} for the layer's index.
  std::unordered_map<std::string, Shape> shapes_;
};

}  // namespace ckpt::families
