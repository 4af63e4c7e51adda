// SPDX-License-Identifier: Apache-2.0
#include "lib/text/utf8.h"

#include <algorithm>
#include <cstring>

namespace ckpt::text {
namespace {

constexpr size_t kAsciiBlock = 64;

// The length of the whole blocks of ASCII at the start of `text`: nearly all of
// a header or an index.
size_t ascii_run(std::string_view text) {
  size_t at = 0;
  for (; at + kAsciiBlock <= text.size(); at += kAsciiBlock) {
    uint64_t words[kAsciiBlock / 8];
    std::memcpy(words, text.data() + at, kAsciiBlock);
    uint64_t any = 0;
    for (const uint64_t word : words) any |= word;
    if ((any & 0x8080808080808080) != 0) break;
  }
  return at;
}

// The length of the character that begins at `at`, 0 if none does.
size_t char_length(const uint8_t* at, size_t left) {
  const uint8_t lead = at[0];
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || left < length) return 0;
  // The second byte tells if it is overlong, a surrogate or too large.
  const uint8_t least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const uint8_t most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  if (at[1] < least || at[1] > most) return 0;
  for (size_t i = 2; i < length; ++i)
    if ((at[i] & 0xc0) != 0x80) return 0;
  return length;
}

const uint8_t* bytes_of(std::string_view text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}

}  // namespace

Utf8Char first_char(std::string_view text) {
  if (text.empty()) return {};
  const uint8_t* const at = bytes_of(text);
  const size_t length = char_length(at, text.size());
  if (length <= 1) return {length == 0 ? char32_t{0} : at[0], length};
  char32_t code = at[0] & (0x7f >> length);
  for (size_t i = 1; i < length; ++i) code = code << 6 | (at[i] & 0x3f);
  return {code, length};
}

void append_utf8(std::string& text, char32_t code) {
  const auto put = [&](char32_t byte) { text += static_cast<char>(byte); };
  const auto tail = [&](int shift) { put(0x80 | (code >> shift & 0x3f)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0 | code >> 6);
    tail(0);
  } else if (code < 0x10000) {
    put(0xe0 | code >> 12);
    tail(6);
    tail(0);
  } else {
    put(0xf0 | code >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

size_t whole_chars(std::string_view text) {
  for (size_t tail = 1; tail <= std::min<size_t>(3, text.size()); ++tail) {
    const auto byte = static_cast<uint8_t>(text[text.size() - tail]);
    if (byte < 0x80) break;
    if (byte < 0xc0) continue;  // not the first byte of its character
    const size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
    return text.size() - (tail < length ? tail : 0);
  }
  return text.size();
}

bool is_utf8(std::string_view text) {
  const uint8_t* const bytes = bytes_of(text);
  size_t at = 0;
  while (at < text.size()) {
    at += ascii_run(text.substr(at));
    // Texts in other scripts have few ASCII bytes: don't begin a run for each.
    const size_t until = std::min(text.size(), at + kAsciiBlock);
    while (at < until) {
      const size_t length = char_length(bytes + at, text.size() - at);
      if (length == 0) return false;
      at += length;
    }
  }
  return true;
}

}  // namespace ckpt::text
