// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace ckpt::io {

// All below a URL will be listed: where one listing can say it, it is asked for
// here, once, and not for each directory.
void look_below_remote(const std::string& url);

}  // namespace ckpt::io
