// SPDX-License-Identifier: Apache-2.0
// Keeps one copy of what the files of similar ranks have in common.
//
// Ranks whose shards are alike write files that differ only in payload. What
// surrounds it, 300 KB for a thousand tensors, is held once for all of them
// while any of them is planned.
#pragma once

#include "ckpt/layout.h"

namespace ckpt::torch {

// Replaces the literals and the late checksums of `file` by equal ones of a
// file that was planned before and still exists. From any thread.
void share_lists(TargetFile& file);

}  // namespace ckpt::torch
