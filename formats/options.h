// SPDX-License-Identifier: Apache-2.0
// Options that formats own: each row of the registry lists its own
// (Traits::options), and commands and the library find them there.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ckpt/layout.h"

namespace ckpt::formats {

// Every option once, in the order of the formats. Options of the same name
// differ between formats only in their checks.
std::vector<const FormatOption*> all_options();

// True if the format has an option of that name.
bool takes(std::string_view format, std::string_view option);

// The format whose file names end that way; "" for a directory. A trailing
// slash makes any name a directory.
std::string_view format_of_name(std::string_view path);

// The container to write if none is named.
std::string_view usual_container();

// Throws usage_error for an option that the layout's format lacks, with a hint
// that names the formats that have it, and for text that is not a valid value.
void check_options(const Layout& layout);

// Checks for values.
void check_count(const FormatOption& option, const std::string& text);  // ≥ 1
void check_flag(const FormatOption& option, const std::string& text);

inline constexpr std::string_view kSet = "yes";  // the text of a flag

}  // namespace ckpt::formats
