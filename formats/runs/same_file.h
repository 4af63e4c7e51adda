// SPDX-License-Identifier: Apache-2.0
// Writes files as they are, byte for byte, and places their tensors in them:
// for containers without ranks. Private to this room.
#pragma once

#include "ckpt/layout.h"

namespace ckpt::runs {

// Paths of the target's files are relative to `step`. Throws unfaithful_error
// for tensors that overlap, or that are strided in a file.
Target lay_out_same(Catalog& catalog, const std::string& step);

}  // namespace ckpt::runs
