// SPDX-License-Identifier: Apache-2.0
// The nested state dict that a flat checkpoint was made from: planner_data
// gives each name its path, so a torch file can be written the way torch's own
// converter writes it. Also used by olmo_core.
//
//   "lst.0" -> ("lst", 0), "lst.2.k" -> ("lst", 2, "k")
//   {"lst": [value, None, {"k": value}]}
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/dcp/metadata.h"

namespace ckpt::dcp {

// Gives the complete catalog of this metadata its skeleton. Objects in the
// skeleton are None until load_objects runs, which this replaces with one that
// fills them in. If paths contradict each other, adds a problem and no
// skeleton.
void add_nest(Metadata& metadata, Catalog& catalog,
              const formats::ReadOptions& options);

}  // namespace ckpt::dcp
