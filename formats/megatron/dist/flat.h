// SPDX-License-Identifier: Apache-2.0
// Flattened tensors of cores 0.8 to 0.15, which torch_dist stores with another
// shape.
//
//   tensor   (G0 … Gk), cut into boxes of (l0 … lk), of each of which a
//            data-parallel rank holds elements [start, stop)
//   stored   size (G0/l0 … Gk/lk, l0 * … * lk)
//            chunk at (c0 … ck, start) of (1 … 1, stop - start)
//
// Viewed as it was: the piece is a flat range of box c. No byte moves.
#pragma once

#include "ckpt/catalog.h"
#include "formats/dcp/metadata.h"

namespace ckpt::megatron {

// Restores the original shape of tensors that mcore_data names and, if it is
// gone, of optimizer state with its parameter's shape and one dimension more.
// Sets archive_opener if there are any. Throws input_error for chunks that are
// not such ranges.
void undo_flattening(const dcp::Metadata& metadata, Catalog& catalog);

}  // namespace ckpt::megatron
