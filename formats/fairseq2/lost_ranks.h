// SPDX-License-Identifier: Apache-2.0
// The last data-parallel ranks may be missing: no file says how many there
// were. Shapes do, whatever the family: in a layer that maps `model_dim` to
// itself, the ranks share the rows but not the columns.
//
//   ffn.inner_proj.weight   [inner, model]   sdp_00: [6, 20]  sdp_01: [6, 20]
//   ffn.output_proj.weight  [model, inner]   sdp_00: [7, 17]  sdp_01: [7, 17]
//                                     17 columns, and only 12 rows of inner
//
// A buffer is whole on every rank: running_mean [12] beside weight [6].
#pragma once

#include "ckpt/catalog.h"
#include "formats/fairseq2/scan.h"

namespace ckpt::fairseq2 {

// Throws input_error if every such pair shows the same number of ranks, and
// there are files of fewer. Ignores other contradictions: a family may have
// layers of its own.
void check_rows(const Grid& grid, const Catalog& catalog);

}  // namespace ckpt::fairseq2
