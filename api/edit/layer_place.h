// SPDX-License-Identifier: Apache-2.0
// Which layer a tensor belongs to.
//
//   model.layers.7.mlp.weight            its name says so: layer 7
//   decoder.layers.mlp.weight [32, …]    Megatron's distributed formats stack
//                                        them: row i of axis 0 is layer i
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "ckpt/catalog.h"

namespace ckpt::library {

// The layer that a tensor belongs to: N of "layers.N", "blocks.N", "h.N" …
// in its dotted name; nothing if it belongs to none.
std::optional<uint32_t> layer_of(std::string_view name);
// … and where in the name its digits are.
struct LayerPlace {
  uint32_t layer = 0;
  size_t begin = 0;
  size_t end = 0;
};
std::optional<LayerPlace> layer_place(std::string_view name);
// Optimizer state belongs to its parameter's layer, whatever its own name.
std::optional<uint32_t> layer_of(const Tensor& tensor);

// How many layers axis 0 of a tensor stacks; 0 if it stacks none.
uint64_t stacked_layers(const Catalog& catalog, const Tensor& tensor);

}  // namespace ckpt::library
