// SPDX-License-Identifier: Apache-2.0
// What --layers counts: the language model's layers. A tower beside it has
// layers of its own (formats/rank_rules.h recognizes towers by name).
//
//   model.language_model.layers.3.mlp.up_proj.weight   layer 3
//   model.visual.blocks.3.mlp.fc1.weight               of no layer
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::library {

// The layers of one model; a tower by itself is a model.
class LayerCount {
 public:
  // Ignores tensors that are left out, by their index in the catalog.
  LayerCount(const Catalog& catalog, const std::vector<bool>& left_out);
  // As layer_of() and stacked_layers() of layers.h; nothing for a tower beside
  // a language model.
  std::optional<uint32_t> layer_of(std::string_view name) const;
  std::optional<uint32_t> layer_of(const Tensor& tensor) const;
  uint64_t stacked(const Catalog& catalog, const Tensor& tensor) const;
  // True for a tower's tensor beside a language model.
  bool aside(std::string_view name) const;

 private:
  bool has_text_ = false;  // layers of a language model
};

}  // namespace ckpt::library
