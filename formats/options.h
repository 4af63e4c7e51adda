// SPDX-License-Identifier: Apache-2.0
// Options that formats own: each row of the registry has the list of its
// (Traits::options), commands and the library know them from there.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ckpt/layout.h"

namespace ckpt::formats {

// Every option once, in the order of the formats. Those of one name are the
// same in all formats but for their checks.
std::vector<const FormatOption*> all_options();

// True if the format has an option of that name.
bool takes(std::string_view format, std::string_view option);

// The format whose files' names end so; "" for a directory. A trailing slash
// makes any name a directory.
std::string_view format_of_name(std::string_view path);

// The container that is written where none is named.
std::string_view usual_container();

// Throws a usage_error for an option that the layout's format lacks, with a
// hint that names the formats that have it, and for a text that is not a value.
void check_options(const Layout& layout);

// Checks of values.
void check_count(const FormatOption& option, const std::string& text);  // ≥ 1
void check_flag(const FormatOption& option, const std::string& text);

inline constexpr std::string_view kSet = "yes";  // the text of a flag

}  // namespace ckpt::formats
