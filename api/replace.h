// SPDX-License-Identifier: Apache-2.0
// What --overwrite may replace.
#pragma once

#include <string>

namespace ckpt::library {

// Throws unfaithful_error naming what stands there if `target` is a directory
// that holds something else than a checkpoint: no format knows it and no
// manifest says that ckpt wrote it, or it is somebody's home or repository.
void check_replaceable(const std::string& target);

}  // namespace ckpt::library
