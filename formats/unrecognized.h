// SPDX-License-Identifier: Apache-2.0
// What is said of a path that no format takes.
#pragma once

#include <string>

#include "formats/format.h"

namespace ckpt::formats {

// Throws missing_error, with what could have been meant, unless `path` is a
// file or a directory.
void check_path(const std::string& path);

// Throw missing_error: what lies there instead, which checkpoints lie below,
// or the format that nearly took it.
[[noreturn]] void unknown_file(const Detection& detection);
[[noreturn]] void unknown_directory(const Detection& detection);
[[noreturn]] void empty_file(const std::string& path);

// "below it are: a (dcp), b (dcp) and 7 more": what lies in the folders of a
// directory, but for the one in which `failed` is; "" if nothing does.
std::string checkpoints_below(const std::string& path,
                              const std::string& failed);

}  // namespace ckpt::formats
