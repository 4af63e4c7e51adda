// SPDX-License-Identifier: Apache-2.0
#include "lib/text/utf8.h"

#include <algorithm>
#include <cstring>

namespace ckpt::text {
namespace {

constexpr size_t kAsciiBlock = 64;

// The length of whole blocks of ASCII that `text` begins with: nearly all of
// what a header or an index is.
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

}  // namespace

Utf8Char first_char(std::string_view text) {
  if (text.empty()) return {};
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};

  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return {};
  char32_t code = lead & (0x7f >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3f);
  }
  const bool overlong =
      (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  if (overlong || surrogate || code > 0x10ffff) return {};
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
  size_t at = 0;
  while (at < text.size()) {
    at += ascii_run(text.substr(at));
    // Texts of other scripts have few bytes of ASCII: no new run for each.
    const size_t until = std::min(text.size(), at + kAsciiBlock);
    while (at < until) {
      const Utf8Char next = first_char(text.substr(at));
      if (next.length == 0) return false;
      at += next.length;
    }
  }
  return true;
}

}  // namespace ckpt::text
