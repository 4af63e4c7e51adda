// SPDX-License-Identifier: Apache-2.0
// UTF-8, one character at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ckpt::text {

struct Utf8Char {
  char32_t code = 0;
  size_t length = 0;  // bytes; 0: the text does not begin with valid UTF-8
};

// The first character of `text`, strictly: no overlong forms, no surrogates,
// nothing above U+10FFFF.
Utf8Char first_char(std::string_view text);

void append_utf8(std::string& text, char32_t code);

// True if all of `text` is UTF-8 (many gigabytes per second).
bool is_utf8(std::string_view text);

// The length of `text` without a cut-off character at its end.
size_t whole_chars(std::string_view text);

}  // namespace ckpt::text
