// SPDX-License-Identifier: Apache-2.0
#include "lib/text/json_text.h"

#include <fmt/format.h>

#include <iterator>

#include "lib/text/hostile.h"
#include "lib/text/utf8.h"

namespace ckpt::text {
namespace {

// Writes invisible or deceptive characters as \u, which means the same.
void append_char(std::string& out, std::string_view bytes) {
  const char32_t code = first_char(bytes).code;
  if (!is_hostile(code)) {
    out += bytes;
  } else if (code < 0x10000) {
    fmt::format_to(std::back_inserter(out), "\\u{:04x}",
                   static_cast<uint32_t>(code));
  } else {
    const auto rest = static_cast<uint32_t>(code) - 0x10000;
    fmt::format_to(std::back_inserter(out), "\\u{:04x}\\u{:04x}",
                   0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
  }
}

bool is_surrogate(std::string_view text) {
  const auto byte = [&](size_t i) {
    return static_cast<unsigned char>(text[i]);
  };
  return text.size() >= 3 && byte(0) == 0xED && (byte(1) & 0xE0) == 0xA0 &&
         (byte(2) & 0xC0) == 0x80;
}

}  // namespace

void append_json(std::string& out, std::string_view text) {
  out += '"';
  size_t i = 0;
  while (i < text.size()) {
    const size_t plain = i;
    while (i < text.size() && text[i] >= 0x20 && text[i] != '"' &&
           text[i] != '\\' && text[i] != 0x7F)
      ++i;
    out.append(text, plain, i - plain);
    if (i == text.size()) break;
    const auto byte = static_cast<unsigned char>(text[i]);
    const std::string_view rest = text.substr(i);
    if (const size_t n = byte < 0x80 ? 0 : first_char(rest).length; n != 0) {
      append_char(out, rest.substr(0, n));
      i += n;
    } else if (is_surrogate(rest)) {
      const unsigned code = 0xD000u |
                            (static_cast<unsigned char>(rest[1]) & 63u) << 6 |
                            (static_cast<unsigned char>(rest[2]) & 63u);
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", code);
      i += 3;
    } else {
      switch (byte) {
        case '"':
          out += "\\\"";
          break;
        case '\\':
          out += "\\\\";
          break;
        case '\n':
          out += "\\n";
          break;
        case '\t':
          out += "\\t";
          break;
        default:
          fmt::format_to(std::back_inserter(out), "\\u{:04x}",
                         byte < 0x80 ? byte : 0xDC00u + byte);
      }
      ++i;
    }
  }
  out += '"';
}

std::string json_text(std::string_view text) {
  std::string out;
  append_json(out, text);
  return out;
}

}  // namespace ckpt::text
