// SPDX-License-Identifier: Apache-2.0
#include "lib/pickle/codecs.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>

#include "lib/text/utf8.h"

namespace ckpt::pickle {
namespace {

enum class Codec { kLatin1, kAscii, kUtf8, kOther };

Codec codec_of(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (c == '-' || c == '_' || c == ' ') continue;
    const bool upper = c >= 'A' && c <= 'Z';
    plain += upper ? static_cast<char>(c - 'A' + 'a') : c;
  }
  if (plain == "latin1" || plain == "iso88591") return Codec::kLatin1;
  if (plain == "ascii") return Codec::kAscii;
  if (plain == "utf8") return Codec::kUtf8;
  return Codec::kOther;
}

// ED A0..BF xx: U+D800 to U+DFFF.
bool begins_with_surrogate(std::string_view text) {
  return text.size() >= 3 && text[0] == '\xED' &&
         static_cast<uint8_t>(text[1]) >= 0xA0 &&
         static_cast<uint8_t>(text[1]) <= 0xBF &&
         (static_cast<uint8_t>(text[2]) & 0xC0) == 0x80;
}

std::optional<char32_t> hex_number(std::string_view digits, size_t count) {
  if (digits.size() < count) return std::nullopt;
  uint32_t value = 0;
  const char* end = digits.data() + count;
  const auto [stop, error] = std::from_chars(digits.data(), end, value, 16);
  if (error != std::errc() || stop != end) return std::nullopt;
  return static_cast<char32_t>(value);
}

// The escapes of a Python bytes literal that mean one fixed byte.
std::optional<char> simple_escape(char letter) {
  switch (letter) {
    case '\\':
    case '\'':
    case '"':
      return letter;
    case 'a':
      return '\a';
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    case 'v':
      return '\v';
    default:
      return std::nullopt;
  }
}

// Up to three octal digits; like Python, keeps the low 8 bits.
char octal_escape(std::string_view& text) {
  unsigned value = 0;
  for (int i = 0; i < 3 && !text.empty(); ++i) {
    if (text[0] < '0' || text[0] > '7') break;
    value = value * 8 + static_cast<unsigned>(text[0] - '0');
    text.remove_prefix(1);
  }
  return static_cast<char>(value & 0xFF);
}

}  // namespace

namespace {

// Most texts of a pickle are short and ASCII: calling a full UTF-8 library
// costs more than looking.
bool is_short_ascii(std::string_view text) {
  constexpr size_t kShort = 64;
  if (text.size() > kShort) return false;
  uint64_t bits = 0;
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    bits |= word;
  }
  for (; i < text.size(); ++i) bits |= static_cast<unsigned char>(text[i]);
  return (bits & 0x8080808080808080u) == 0;
}

}  // namespace

bool is_python_utf8(std::string_view text) {
  if (is_short_ascii(text) || text::is_utf8(text)) return true;
  while (!text.empty()) {
    const size_t length =
        begins_with_surrogate(text) ? 3 : text::first_char(text).length;
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

bool has_surrogates(std::string_view python_utf8) {
  for (size_t i = 0; (i = python_utf8.find('\xED', i)) != std::string::npos;
       ++i) {
    if (begins_with_surrogate(python_utf8.substr(i))) return true;
  }
  return false;
}

char32_t next_char(std::string_view& python_utf8) {
  if (begins_with_surrogate(python_utf8)) {
    const char32_t code = 0xD000u |
                          (static_cast<char32_t>(python_utf8[1]) & 0x3F) << 6 |
                          (static_cast<char32_t>(python_utf8[2]) & 0x3F);
    python_utf8.remove_prefix(3);
    return code;
  }
  const text::Utf8Char first = text::first_char(python_utf8);
  python_utf8.remove_prefix(std::max<size_t>(first.length, 1));
  return first.code;
}

bool is_plain_codec(std::string_view codec) {
  return codec_of(codec) != Codec::kOther;
}

std::optional<std::string> encode_text(std::string_view python_utf8,
                                       std::string_view codec) {
  const Codec which = codec_of(codec);
  if (which == Codec::kOther) return std::nullopt;
  if (which == Codec::kUtf8) {
    if (has_surrogates(python_utf8)) return std::nullopt;
    return std::string(python_utf8);
  }
  const char32_t largest = which == Codec::kAscii ? 0x7F : 0xFF;
  std::string bytes;
  bytes.reserve(python_utf8.size());
  while (!python_utf8.empty()) {
    const char32_t code = next_char(python_utf8);
    if (code > largest) return std::nullopt;
    bytes += static_cast<char>(code);
  }
  return bytes;
}

std::string from_latin1(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() + bytes.size() / 2);
  for (const char c : bytes) text::append_utf8(text, static_cast<uint8_t>(c));
  return text;
}

std::optional<std::string> from_raw_unicode_escape(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const char c = bytes[0];
    bytes.remove_prefix(1);
    text::append_utf8(text, static_cast<uint8_t>(c));
    if (c != '\\' || bytes.empty()) continue;
    const char kind = bytes[0];
    if (kind != 'u' && kind != 'U') {
      text::append_utf8(text, static_cast<uint8_t>(kind));
      bytes.remove_prefix(1);
      continue;
    }
    const size_t digits = kind == 'u' ? 4 : 8;
    const auto code = hex_number(bytes.substr(1), digits);
    if (!code || *code > 0x10FFFF) return std::nullopt;
    text.pop_back();                 // the backslash
    text::append_utf8(text, *code);  // a surrogate as 3 bytes
    bytes.remove_prefix(1 + digits);
  }
  return text;
}

std::optional<std::string> from_quoted(std::string_view text) {
  if (text.size() < 2 || text.front() != text.back() ||
      (text.front() != '\'' && text.front() != '"'))
    return std::nullopt;
  text = text.substr(1, text.size() - 2);
  std::string bytes;
  while (!text.empty()) {
    const char c = text[0];
    text.remove_prefix(1);
    if (c != '\\') {
      bytes += c;
      continue;
    }
    if (text.empty()) return std::nullopt;
    const char letter = text[0];
    if (letter >= '0' && letter <= '7') {
      bytes += octal_escape(text);
      continue;
    }
    text.remove_prefix(1);
    if (const auto simple = simple_escape(letter)) {
      bytes += *simple;
    } else if (letter == 'x') {
      const auto code = hex_number(text, 2);
      if (!code) return std::nullopt;
      bytes += static_cast<char>(*code);
      text.remove_prefix(2);
    } else {  // an unknown escape stands for itself
      bytes += c;
      bytes += letter;
    }
  }
  return bytes;
}

}  // namespace ckpt::pickle
