// SPDX-License-Identifier: Apache-2.0
// Families that a program adds, and those in directories of CKPT_FAMILY_PATH,
// besides the built-in ones.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lib/embedded.h"

namespace ckpt::families {

// All files that may be families, the user's first. Read once: nothing can be
// added afterwards. Throws usage_error "FILE:LINE:COLUMN: …" for a bad one, and
// for a name that two have.
std::span<const Embedded> files();

// The .json files of the directories that an environment variable lists
// ("a:b"), by their order there and then by name.
std::vector<std::string> files_on_path(const char* variable);

// `load` is called before they are read: modules may add some. Returns true.
bool before_reading(void (*load)());

}  // namespace ckpt::families
