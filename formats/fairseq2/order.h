// SPDX-License-Identifier: Apache-2.0
// The order of a model's modules, and their pipeline stages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::fairseq2 {

// "decoder.layers.7.ffn.inner_proj.weight": stack "decoder", index 7, rest
// "ffn.inner_proj.weight". Frontends have no layers of this kind.
struct LayerName {
  std::string_view stack;  // empty: not in a layer
  uint64_t index = 0;
  std::string_view rest;
};
LayerName layer_of(std::string_view name);

// Sorts names as fairseq2 registers modules: frontend, layers by number (norm,
// attention, norm, ffn; in olmo the norms come after), the stack's norm, final
// projection. Names of other modules come last, in their own order.
void sort_by_module(std::vector<std::string>& names, std::string_view family);

// The stage of each name. Layers are spread evenly, encoder first. Frontends
// are in the first stage, an encoder's norm is with its last layer, and all
// else is in the last stage. Throws unfaithful_error if there are fewer layers
// than stages. Says in `assumption` what it did.
std::vector<uint32_t> assign_stages(const std::vector<std::string>& names,
                                    uint32_t stages, std::string& assumption);

}  // namespace ckpt::fairseq2
