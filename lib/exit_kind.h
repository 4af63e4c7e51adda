// SPDX-License-Identifier: Apache-2.0
// The word that errors in JSON have for an exit status.
#pragma once

#include <string_view>

#include "ckpt/error.h"

namespace ckpt {

// "damaged" for kDamaged.
std::string_view kind_name(ExitCode code);

}  // namespace ckpt
