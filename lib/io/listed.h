// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace ckpt::io {

// Of a name that a listing has: is_directory(), and false for a link that leads
// nowhere or in a circle, where that throws. Whoever needs what such a link
// stands for reports it; beside a checkpoint it is none of its parts.
bool is_listed_directory(const std::string& path);

}  // namespace ckpt::io
