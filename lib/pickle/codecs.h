// SPDX-License-Identifier: Apache-2.0
// The text encodings that pickles use.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ckpt::pickle {

// UTF-8, except that surrogates may appear as 3 bytes each (Python's
// surrogatepass).
bool is_python_utf8(std::string_view text);
bool has_surrogates(std::string_view python_utf8);

// str.encode(codec) for latin1, utf-8 and ascii; nullopt if a character does
// not fit. Accepts Python's other spellings of these names.
bool is_plain_codec(std::string_view codec);
std::optional<std::string> encode_text(std::string_view python_utf8,
                                       std::string_view codec);
// Each byte becomes the character of that number.
std::string from_latin1(std::string_view bytes);

// UNICODE's raw-unicode-escape: Latin-1, \uXXXX and \UXXXXXXXX.
std::optional<std::string> from_raw_unicode_escape(std::string_view bytes);
// STRING's quoted repr(): 'a\n\x01' with its quotes, to bytes.
std::optional<std::string> from_quoted(std::string_view text);

// Removes the first code point of a valid text and returns it.
char32_t next_char(std::string_view& python_utf8);

}  // namespace ckpt::pickle
