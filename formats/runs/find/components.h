// SPDX-License-Identifier: Apache-2.0
// Several models in one folder, each with its own configuration. Private to
// this room.
//
//   model_index.json                  modules.json
//   unet/  config.json, weights       config.json, model.safetensors
//   vqvae/ config.json, weights       1_Pooling/ config.json
//   scheduler/                        2_Dense/   config.json, weights
#pragma once

#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/runs/find/trainer.h"

namespace ckpt::runs {

// The folders that have weights, in the order of the list; "": the folder
// itself. Empty if the trainer has no components or the file lists none. Throws
// input_error for a damaged list.
std::vector<std::string> component_folders(const Trainer& trainer,
                                           const std::string& folder);

// Adds a problem for each listed component without weights.
void check_components(const Trainer& trainer, const std::string& folder,
                      Catalog& catalog);

}  // namespace ckpt::runs
