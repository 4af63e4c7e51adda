// SPDX-License-Identifier: Apache-2.0
// Checks whether the tensors agree with config.json.
#pragma once

#include "ckpt/catalog.h"
#include "formats/modelopt/config.h"
#include "formats/modelopt/names.h"

namespace ckpt::modelopt {

// Adds a problem for each half of a block that is missing or should not be
// there, and for sizes that differ from block_configs.
void check_blocks(Catalog& catalog, const Naming& naming, const Config& config);

}  // namespace ckpt::modelopt
