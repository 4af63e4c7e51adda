// SPDX-License-Identifier: Apache-2.0
// What the two containers of Megatron-Core's distributed checkpoints share:
// a catalog that holds global tensors and objects under their sharded keys
// becomes one that says what they are.
//
//   kind, param, state   from optimizer.state.<state>.<param>
//   tp                   from the boxes, else from the table (rules.h)
//   topology             from the args, else from boxes and writers
//   objects              entries of the common part, then those of grids
//   flat buffers         seen as the parameters that they hold (buckets.h)
#pragma once

#include "ckpt/catalog.h"
#include "formats/format.h"
#include "formats/megatron/state/common.h"

namespace ckpt::megatron {

// Tensors with their pieces and objects of grids are in the catalog. Throws
// input_error for grids of objects that don't fit together; one that lacks
// entries is a problem (damage).
void finish_dist_catalog(Catalog& catalog, const Common& common);

// The rank that wrote a file: "__3_0.distcp", "optimizer__3_1.distcp".
std::optional<uint64_t> writer_rank(std::string_view file_name);

}  // namespace ckpt::megatron
