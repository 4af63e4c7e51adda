// SPDX-License-Identifier: Apache-2.0
// Why no format recognized a path.
#pragma once

#include <string>
#include <vector>

namespace ckpt::formats {

// "not torch: starts with none of torch's magic bytes", in the order tried.
// The path exists.
std::vector<std::string> tried_formats(const std::string& path);

}  // namespace ckpt::formats
