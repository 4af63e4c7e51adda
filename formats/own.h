// SPDX-License-Identifier: Apache-2.0
// Formats that a program or a module adds (ckpt/format.h).
#pragma once

#include <vector>

#include "formats/format.h"

namespace ckpt::formats {

// The registered formats, then those of modules, ordered by directory and name.
// Nothing can be registered afterwards. Throws resource_error for a module that
// can't be opened or was built for another ckpt, usage_error for a name that is
// in `taken` or occurs twice.
std::vector<Format> own_formats(const std::vector<Format>& taken);

}  // namespace ckpt::formats
