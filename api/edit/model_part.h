// SPDX-License-Identifier: Apache-2.0
// --part of what is several models: a pipeline's, a trainer's roles.
#pragma once

#include <string>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::library {

// Makes the model called `name` ("unet", "critic") of these
// (families::models_of) all of the catalog, under the names that it has by
// itself and with its own configuration. Returns a line about what was left
// out. Throws unfaithful_error, with the names that there are, if none is it.
std::string keep_model(Catalog& catalog, const std::vector<Component>& all,
                       const std::string& name);

}  // namespace ckpt::library
