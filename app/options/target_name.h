// SPDX-License-Identifier: Apache-2.0
// What the name of a target says about it.
#pragma once

#include <string>
#include <string_view>

namespace ckpt::app {

// The format whose files have such names (*.safetensors, *.pt); "" for a
// directory. A trailing slash makes any name a directory.
std::string file_format(std::string_view target);

}  // namespace ckpt::app
