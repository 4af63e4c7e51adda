// SPDX-License-Identifier: Apache-2.0
// What an index says after FSDP's flat tensors became parameters: entries and
// planner paths of the new names, for the nest that is made of them.
//
//   ("model", "layers.0._flat_param")  ->  ("model", "layers.0.norm.weight") …
#pragma once

#include <vector>

#include "formats/dcp/metadata.h"
#include "formats/fsdp/expand.h"

namespace ckpt::dcp {

// Entries of metadata.tensors (their chunks are taken already) and of
// metadata.planner.
void rename_entries(const std::vector<fsdp::Expansion>& expansions,
                    Metadata& metadata);

}  // namespace ckpt::dcp
