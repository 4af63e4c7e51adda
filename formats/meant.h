// SPDX-License-Identifier: Apache-2.0
// What people mean by names that are no format's: frameworks, trainers, other
// programs' options and the endings of files.
#pragma once

#include <string>
#include <string_view>

namespace ckpt::formats {

// The next step, for a name that find_format doesn't know.
std::string meant_format(std::string_view name);

// What to write instead of a format that is only read; "" if nothing is known.
std::string written_instead(std::string_view format);

}  // namespace ckpt::formats
