// SPDX-License-Identifier: Apache-2.0
// Writes FSDP1's optimizer with use_orig_params for another number of ranks:
// each rank has the states of the parameters of which it has elements.
//
//   rank 0   {0: {exp_avg [37], …}}
//   rank 1   {0: {exp_avg [8], …}, 1: {exp_avg [16], …}}
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

// As lay_out_flat(); the optimizer numbers parameters. One rank has states of
// their parameters' shapes: FSDP1 cuts nothing for it.
Target lay_out_original(const std::string& folder, const std::string& pattern,
                        const Catalog& catalog,
                        const std::vector<FlatUnit>& units, const Grid& grid);

}  // namespace ckpt::runs
