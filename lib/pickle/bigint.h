// SPDX-License-Identifier: Apache-2.0
// Integers beyond 64 bits, as pickles hold them: little-endian two's
// complement, or decimal text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ckpt::pickle {

// Both take time quadratic in the length, which callers limit.
std::string decimal_of(std::string_view little_endian);
// The shortest two's complement form; 0 has none.
std::string bytes_of(std::string_view decimal);

// "  +007 " -> "7"; nullopt if it is not a decimal integer.
std::optional<std::string> plain_decimal(std::string_view text);

}  // namespace ckpt::pickle
