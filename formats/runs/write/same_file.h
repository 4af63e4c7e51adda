// SPDX-License-Identifier: Apache-2.0
// Writes files as they are, byte for byte, and places their tensors in them:
// for containers without ranks. A tensor that is strided in its file (a
// transposed matrix, a column of one) or overlaps with another has no place of
// its own: its bytes go along with the file's. Private to this room.
#pragma once

#include <vector>

#include "ckpt/layout.h"

namespace ckpt::runs {

// Which tensors have a place of their own.
std::vector<bool> have_places(Catalog& catalog);

// Paths of the target's files are relative to `step`; its tensors are those
// that have places. Checksums of their records follow. Throws unfaithful_error
// for compressed ones, and, if other elements are written than the file has
// (`computed`), for a record that has more than tensors.
Target lay_out_same(Catalog& catalog, const std::string& step, bool computed);

// True if elements are computed, or come from another checkpoint.
bool has_computed(const Catalog& source);

}  // namespace ckpt::runs
