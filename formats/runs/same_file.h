// SPDX-License-Identifier: Apache-2.0
// Files written as they are, byte for byte, and their tensors found in them:
// containers that have no ranks. Private to this room.
#pragma once

#include "ckpt/layout.h"

namespace ckpt::runs {

// Paths of the target's files are those from `step` on. Throws
// unfaithful_error for tensors that overlap, or that lie strided in a file.
Target lay_out_same(Catalog& catalog, const std::string& step);

}  // namespace ckpt::runs
