// SPDX-License-Identifier: Apache-2.0
// The models of a pipeline or of a trainer's step, each with the configuration
// that its own loader opens.
#pragma once

#include <string>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::families {

// "unet." in unet, "critic." in critic/huggingface; none where one model is
// all.
std::vector<Component> models_of(const Catalog& source);

// What --part calls it: "unet"; "." for the one of the checkpoint's own folder.
std::string word_of(const Component& model);

}  // namespace ckpt::families
