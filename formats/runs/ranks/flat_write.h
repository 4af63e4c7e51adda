// SPDX-License-Identifier: Apache-2.0
// Writes FSDP1's optimizer for another number of ranks: parameters laid end to
// end, padded, and cut into equal parts (use_orig_params=False).
//
//   unit 1     | q_proj | k_proj | … | pad |
//   of 3 ranks | rank 0    | rank 1    | rank 2 |
//
// Private to this room.
#pragma once

#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"
#include "formats/runs/ranks/flat_units.h"
#include "formats/runs/ranks/grid.h"

namespace ckpt::runs {

// `pattern`: that of the files in `folder`, "optim_world_size_{W}_rank_{r}.pt".
// `catalog`: what read_ranks and name_shares made of them. `units`: by number.
Target lay_out_flat(const std::string& folder, const std::string& pattern,
                    const Catalog& catalog, const std::vector<FlatUnit>& units,
                    const Grid& grid);

}  // namespace ckpt::runs
