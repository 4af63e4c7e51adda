// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace ckpt::io {

// Announces that everything below a URL will be listed: where a single listing
// can tell, it is requested here once, not for each directory.
void look_below_remote(const std::string& url);

}  // namespace ckpt::io
