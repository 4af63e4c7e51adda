// SPDX-License-Identifier: Apache-2.0
// A tree of models, as the loader of the whole looks for it: each model under
// its own names in its own folder, under the file names of its library.
//
//   model_index.json                             carried
//   unet/config.json                             carried
//   unet/diffusion_pytorch_model.safetensors     unet.* without "unet."
//   text_encoder/model-00001-of-00002.safetensors …
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "formats/format.h"

namespace ckpt::formats {

// Which component has a tensor: the one with the longest prefix of its name, as
// that of the folder itself has none. all.size() if none has it.
size_t component_of(const std::vector<Component>& all, std::string_view name);

// Adds the tree to a container's writer (safetensors or torch): it lays out
// each component (Run::components) by itself. Its lay_out throws
// unfaithful_error for a tensor of none.
std::unique_ptr<Writer> with_components(std::unique_ptr<Writer> container);

}  // namespace ckpt::formats
