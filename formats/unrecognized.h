// SPDX-License-Identifier: Apache-2.0
// Messages for a path that no format recognizes.
#pragma once

#include <string>

#include "formats/format.h"

namespace ckpt::formats {

// Throws missing_error, suggesting what could have been meant, unless `path` is
// a file or a directory.
void check_path(const std::string& path);

// The same for a path that an option names. An error of a server is passed on.
// Pipes are left to the option's reader, which refuses them.
void check_named(const std::string& path);

// "https://host/x" for "https:/host/x", "hf://org/name" for "hf:org/name": the
// URL that lacks a slash; "" if the path is none.
std::string meant_url(const std::string& path);

// Throw missing_error saying what is there instead, which checkpoints are below
// it, or which format nearly took it.
[[noreturn]] void unknown_file(const Detection& detection);
[[noreturn]] void unknown_directory(const Detection& detection);
[[noreturn]] void empty_file(const std::string& path);

// "below it are: a (dcp), b (dcp) and 7 more": the checkpoints in the folders
// of a directory, with `files` its own files as well, except what holds
// `failed`; "" if there are none.
std::string checkpoints_below(const std::string& path,
                              const std::string& failed, bool files = false);

// "host:path", "user@host:/path", "s3:bucket/x": a colon before the first
// slash, and nothing of that name on this machine.
bool is_elsewhere(const std::string& path);

}  // namespace ckpt::formats
