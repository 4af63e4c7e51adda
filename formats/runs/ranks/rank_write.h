// SPDX-License-Identifier: Apache-2.0
// Writes verl's rank files for another number of ranks: the value tree of rank
// 0's file, with each DTensor's local part and mesh replaced. Private to this
// room.
#pragma once

#include <string>

#include "ckpt/layout.h"
#include "formats/runs/ranks/grid.h"

namespace ckpt::runs {

// `pattern`: "model_world_size_{W}_rank_{r}.pt"; `catalog`: that of the
// source's ranks, which were arranged as `from`. Throws unfaithful_error for
// tensors that are cut over several dimensions of a mesh, and for DTensors of a
// torch version whose meshes are not known. `plain`: write plain tensors
// instead.
Target lay_out_ranks(const std::string& folder, const std::string& pattern,
                     const Catalog& catalog, const Grid& from, const Grid& to,
                     bool plain);

}  // namespace ckpt::runs
