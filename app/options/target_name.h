// SPDX-License-Identifier: Apache-2.0
// What the name of a target says about it.
#pragma once

#include <string>
#include <string_view>

namespace ckpt::app {

// The format whose files have such names (*.safetensors, *.pt); "" for a
// directory. A trailing slash makes any name a directory.
std::string file_format(std::string_view target);

// Lightning names a folder like a file. A target named like the source's folder
// is a folder, too.
bool is_named_alike(std::string_view folder, std::string_view target);

// For commands that write what they read, a file as a file and a folder as a
// folder. Throws usage_error if the target's name says another thing.
void check_same_ending(const std::string& source, const std::string& target);

}  // namespace ckpt::app
