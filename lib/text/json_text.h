// SPDX-License-Identifier: Apache-2.0
// Strings as JSON has them.
#pragma once

#include <string>
#include <string_view>

namespace ckpt::text {

// Appends `text` in quotes. Invisible and deceptive characters are escaped.
// Bytes that are not UTF-8 become lone surrogates, as with Python's
// surrogateescape (byte B -> U+DC00 + B), so that no two names become one.
void append_json(std::string& out, std::string_view text);
std::string json_text(std::string_view text);

}  // namespace ckpt::text
