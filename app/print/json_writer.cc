// SPDX-License-Identifier: Apache-2.0
#include "app/print/json_writer.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "app/print/console.h"
#include "lib/text/hostile.h"
#include "lib/text/utf8.h"

namespace ckpt::app {
namespace {

bool all_lines = false;

// Bytes of the well-formed UTF-8 sequence at the front of `text` (surrogates
// and overlong forms are not well-formed), or 0.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const auto tail = [&](size_t i) { return (byte(i) & 0xC0u) == 0x80u; };
  const unsigned lead = byte(0);
  if (lead >= 0xC2 && lead <= 0xDF) return tail(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    if (!tail(1) || !tail(2)) return 0;
    const unsigned code = (lead & 15u) << 12 | (byte(1) & 63u) << 6;
    return code < 0x800 || (code & 0xF800u) == 0xD800u ? 0 : 3;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    if (!tail(1) || !tail(2) || !tail(3)) return 0;
    const unsigned code = (lead & 7u) << 18 | (byte(1) & 63u) << 12;
    return code < 0x10000 || code > 0x10FFFF ? 0 : 4;
  }
  return 0;
}

// Writes invisible or deceptive characters as \u, which means the same.
void append_char(std::string& out, std::string_view bytes) {
  const char32_t code = text::first_char(bytes).code;
  if (!text::is_hostile(code)) {
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

void JsonWriter::separate() {
  if (after_key_) {
    after_key_ = false;
  } else if (!first_) {
    out_ += ',';
  }
  first_ = false;
}

void JsonWriter::set_lines(bool lines) { all_lines = lines; }

JsonWriter& JsonWriter::begin_document(std::string_view command,
                                       bool into_file) {
  lines_ = all_lines && !into_file;
  begin_object();
  if (lines_) member("line", "document");
  return member("schema", fmt::format("ckpt/{}/1", command));
}

JsonWriter& JsonWriter::open(char bracket) {
  separate();
  ++depth_;
  if (lines_ && depth_ == 2) {
    in_list_ = bracket == '[';
    list_begin_ = out_.size();
    printed_ = 0;
  }
  if (lines_ && depth_ == 3 && in_list_) line_begin_ = out_.size();
  out_ += bracket;
  first_ = true;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  out_ += bracket;
  first_ = false;
  --depth_;
  if (!lines_) return *this;
  if (depth_ == 2 && bracket == '}' && in_list_) end_line();
  if (depth_ == 1) {
    if (printed_ != 0) {
      out_.resize(list_begin_);
      out_ += std::to_string(printed_);
    }
    printed_ = 0;
    in_list_ = false;
  }
  return *this;
}

// Removes the object that has ended from the document.
void JsonWriter::end_line() {
  std::string line = "{\"line\":\"" + name_ + '"';
  const std::string_view object = std::string_view(out_).substr(line_begin_);
  if (object.size() > 2) line += ',';
  line += object.substr(1);
  print(line + '\n');
  ++printed_;
  out_.resize(list_begin_ + 1);
  first_ = true;
}

// Bytes that are not UTF-8 become lone surrogates, as with Python's
// surrogateescape (byte B -> U+DC00 + B), so that no two names become one.
void JsonWriter::quote(std::string_view text) {
  out_ += '"';
  size_t i = 0;
  while (i < text.size()) {
    const size_t plain = i;
    while (i < text.size() && text[i] >= 0x20 && text[i] != '"' &&
           text[i] != '\\' && text[i] != 0x7F)
      ++i;
    out_.append(text, plain, i - plain);
    if (i == text.size()) break;
    const auto byte = static_cast<unsigned char>(text[i]);
    const std::string_view rest = text.substr(i);
    if (const size_t n = byte < 0x80 ? 0 : utf8_length(rest); n != 0) {
      append_char(out_, rest.substr(0, n));
      i += n;
    } else if (is_surrogate(rest)) {
      const unsigned code = 0xD000u |
                            (static_cast<unsigned char>(rest[1]) & 63u) << 6 |
                            (static_cast<unsigned char>(rest[2]) & 63u);
      fmt::format_to(std::back_inserter(out_), "\\u{:04x}", code);
      i += 3;
    } else {
      switch (byte) {
        case '"':
          out_ += "\\\"";
          break;
        case '\\':
          out_ += "\\\\";
          break;
        case '\n':
          out_ += "\\n";
          break;
        case '\t':
          out_ += "\\t";
          break;
        default:
          fmt::format_to(std::back_inserter(out_), "\\u{:04x}",
                         byte < 0x80 ? byte : 0xDC00u + byte);
      }
      ++i;
    }
  }
  out_ += '"';
}

JsonWriter& JsonWriter::key(std::string_view name) {
  separate();
  if (lines_ && depth_ == 1) name_ = name;
  quote(name);
  out_ += ':';
  after_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) {
  separate();
  quote(text);
  return *this;
}

JsonWriter& JsonWriter::value(uint64_t number) {
  separate();
  const fmt::format_int digits(number);
  out_.append(digits.data(), digits.size());
  return *this;
}

JsonWriter& JsonWriter::value(int64_t number) {
  separate();
  const fmt::format_int digits(number);
  out_.append(digits.data(), digits.size());
  return *this;
}

// JSON has no nan or inf: they become the strings "nan", "inf" and "-inf".
JsonWriter& JsonWriter::value(double number) {
  if (!std::isfinite(number)) return value(fmt::format("{}", number));
  separate();
  fmt::format_to(std::back_inserter(out_), "{}", number);
  return *this;
}

JsonWriter& JsonWriter::value(bool truth) {
  separate();
  out_ += truth ? "true" : "false";
  return *this;
}

JsonWriter& JsonWriter::tree(const nlohmann::ordered_json& tree) {
  separate();
  using Handler = nlohmann::ordered_json::error_handler_t;
  out_ += tree.dump(-1, ' ', false, Handler::replace);
  return *this;
}

JsonWriter& JsonWriter::null() {
  separate();
  out_ += "null";
  return *this;
}

JsonWriter& JsonWriter::text_or_null(std::string_view name,
                                     std::string_view text) {
  key(name);
  return text.empty() ? null() : value(text);
}

std::string JsonWriter::text() && {
  out_ += '\n';
  return std::move(out_);
}

}  // namespace ckpt::app
