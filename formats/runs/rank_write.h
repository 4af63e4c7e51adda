// SPDX-License-Identifier: Apache-2.0
// verl's files of ranks, written for another number of them: the value tree of
// rank 0's file with each DTensor's local part and mesh in place of its own.
// Private to this room.
#pragma once

#include <string>

#include "ckpt/layout.h"

namespace ckpt::runs {

// `pattern`: "model_world_size_{W}_rank_{r}.pt"; `catalog`: of the ranks that
// are there. Throws unfaithful_error for a mesh of several dimensions and for
// DTensors of a torch whose meshes are not known. `plain`: tensors instead.
Target lay_out_ranks(const std::string& folder, const std::string& pattern,
                     const Catalog& catalog, uint32_t ranks, bool plain);

}  // namespace ckpt::runs
