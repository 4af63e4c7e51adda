// SPDX-License-Identifier: Apache-2.0
// Formats that a program or a module adds (ckpt/format.h).
#pragma once

#include <vector>

#include "formats/format.h"

namespace ckpt::formats {

// Those that were registered, then those of modules, in the order of their
// directories and names. Nothing can be registered afterwards. Throws
// resource_error for a module that can't be opened or was built for another
// ckpt, usage_error for a name that is in `taken` or there twice.
std::vector<Format> own_formats(const std::vector<Format>& taken);

}  // namespace ckpt::formats
