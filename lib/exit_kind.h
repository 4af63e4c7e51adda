// SPDX-License-Identifier: Apache-2.0
// The word for an exit status in JSON errors.
#pragma once

#include <string_view>

#include "ckpt/error.h"

namespace ckpt {

// "damaged" for kDamaged.
std::string_view kind_name(ExitCode code);

}  // namespace ckpt
