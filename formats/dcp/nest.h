// SPDX-License-Identifier: Apache-2.0
// The nested state dict that a flat checkpoint was made from: planner_data
// gives each name its path, and a torch file can be written as torch's own
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

// Gives the catalog (of this metadata, complete) its skeleton. The objects in
// it are None until load_objects runs, which this replaces: it puts them into
// the skeleton. Paths that contradict each other: no skeleton, and a problem.
void add_nest(Metadata& metadata, Catalog& catalog,
              const formats::ReadOptions& options);

}  // namespace ckpt::dcp
