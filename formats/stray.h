// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "ckpt/catalog.h"

namespace ckpt::formats {

// True for what lies beside a checkpoint's parts and nobody can read: a link
// that leads nowhere (wandb's latest-run, once its folder is copied), a FIFO, a
// socket. False for what has the name of a part, or of a file that belongs to a
// model ("README.md"): that is missing. `where`: its path.
bool is_stray(const SourceFile& file, const std::string& where);

}  // namespace ckpt::formats
