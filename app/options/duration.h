// SPDX-License-Identifier: Apache-2.0
// Times on the command line: "90", "90s", "10m", "2h".
#pragma once

#include <chrono>
#include <string>

namespace ckpt::app {

// Throws usage_error, which names the option.
std::chrono::duration<double> duration_value(const std::string& option,
                                             const std::string& text);

}  // namespace ckpt::app
