// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace ckpt::io {

// Of a name that a listing has: is_directory() and is_file(), and false where
// those throw: for a link that leads nowhere or in a circle, a FIFO, a socket
// or a device. Whoever needs what such a name stands for reports it; beside a
// checkpoint it is none of its parts.
bool is_listed_directory(const std::string& path);
bool is_listed_file(const std::string& path);

// True for a link that leads to nothing, or in a circle.
bool leads_nowhere(const std::string& path);

// What is there in place of a file or a folder: "a link that leads nowhere",
// "a FIFO"; "" for a file or a folder, and for what can't be told.
std::string why_unreadable(const std::string& path);

}  // namespace ckpt::io
