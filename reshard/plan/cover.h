// SPDX-License-Identifier: Apache-2.0
// Proof that a target's files are filled exactly: literals and pieces touch
// every byte once.
#pragma once

#include "ckpt/layout.h"

namespace ckpt::reshard {

// Throws bug_error naming the file and the bytes: a writer that lays out a gap
// or an overlap is wrong, whatever its input.
void prove_file_cover(const Target& target);

}  // namespace ckpt::reshard
