// SPDX-License-Identifier: Apache-2.0
// Updates an index after FSDP's flat tensors became parameters: entries and
// planner paths get the new names, for the nest built from them.
//
//   ("model", "layers.0._flat_param")  ->  ("model", "layers.0.norm.weight") …
#pragma once

#include <vector>

#include "formats/dcp/metadata.h"
#include "formats/fsdp/expand.h"

namespace ckpt::dcp {

// Renames entries of metadata.tensors (whose chunks are already taken) and of
// metadata.planner.
void rename_entries(const std::vector<fsdp::Expansion>& expansions,
                    Metadata& metadata);

}  // namespace ckpt::dcp
