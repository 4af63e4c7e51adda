// SPDX-License-Identifier: Apache-2.0
#include "lib/text/scan.h"

#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <utility>

#include "lib/text/format.h"
#include "lib/text/number.h"
#include "lib/text/utf8.h"

namespace ckpt::text {
namespace {

constexpr bool is_white(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

// True for bytes that end or interrupt a plain run inside a string.
constexpr auto kStops = [] {
  std::array<bool, 256> stops{};
  for (size_t c = 0; c < 0x20; ++c) stops[c] = true;
  stops['"'] = stops['\\'] = true;
  return stops;
}();

// The number of bytes before the first stop in eight of them; 8 if there is
// none. Subtraction marks a byte that is zero after the exclusive or; a borrow
// marks others, but only after a true one.
size_t plain_bytes(const char* eight) {
  static_assert(std::endian::native == std::endian::little);
  constexpr uint64_t kOnes = 0x0101010101010101;
  uint64_t word;
  std::memcpy(&word, eight, sizeof word);
  const uint64_t quotes = word ^ kOnes * '"';
  const uint64_t slashes = word ^ kOnes * '\\';
  const uint64_t stops = ((word - kOnes * 0x20) & ~word) |
                         ((quotes - kOnes) & ~quotes) |
                         ((slashes - kOnes) & ~slashes);
  return static_cast<size_t>(std::countr_zero(stops & kOnes * 0x80)) / 8;
}

// The first byte that is not UTF-8.
size_t bad_utf8(std::string_view text) {
  size_t at = 0;
  while (const size_t length = first_char(text.substr(at)).length) at += length;
  return at;
}

}  // namespace

std::string_view name(Scanner::Kind kind) {
  switch (kind) {
    case Scanner::Kind::kObject:
      return "an object";
    case Scanner::Kind::kArray:
      return "an array";
    case Scanner::Kind::kString:
      return "a string";
    case Scanner::Kind::kNumber:
      return "a number";
    case Scanner::Kind::kTrue:
      return "true";
    case Scanner::Kind::kFalse:
      return "false";
    case Scanner::Kind::kNull:
      return "null";
  }
  return "a value";
}

Scanner::Scanner(std::string_view text, std::string path, Options options)
    : text_(text), path_(std::move(path)), options_(options) {
  if (text.starts_with("\xef\xbb\xbf")) {
    options_.more = false;
    fail("JSON begins with a byte order mark");
  }
  check_utf8();
}

void Scanner::check_utf8() {
  if (is_utf8(text_)) return;
  at_ = bad_utf8(text_);
  options_.more = false;  // more of it would not fix that
  fail("invalid UTF-8 in JSON");
}

void Scanner::resume(const Mark& mark, std::string_view text, bool more) {
  text_ = text;
  subject_ = {};
  options_.offset += mark.at;
  options_.more = more;
  at_ = 0;
  depth_ = mark.depth;
  first_ = mark.first;
  check_utf8();
}

void Scanner::fail(std::string_view problem) const {
  if (options_.more) throw Cut();
  throw input_error({path_, std::string(subject_)}, "{} at byte {}", problem,
                    position());
}

void Scanner::fail_expected(std::string_view what) {
  const Kind found = peek();
  if (found != Kind::kNumber)
    fail(fmt::format("expected {}, found {}", what, name(found)));
  const std::string_view spelled = text_.substr(at_, 32);
  fail(fmt::format(
      "expected {}, found {}", what,
      printable(spelled.substr(0, spelled.find_first_of(",]} \n\t\r")))));
}

void Scanner::skip_white_run() {
  while (at_ < text_.size() && is_white(text_[at_])) ++at_;
}

Scanner::Kind Scanner::peek() {
  skip_white();
  switch (current()) {
    case '{':
      return Kind::kObject;
    case '[':
      return Kind::kArray;
    case '"':
      return Kind::kString;
    case 't':
      return Kind::kTrue;
    case 'f':
      return Kind::kFalse;
    case 'n':
      return Kind::kNull;
    case 'N':
    case 'I':
      if (options_.python_numbers) return Kind::kNumber;
      break;
    default:
      if (current() == '-' || is_digit(current())) return Kind::kNumber;
  }
  fail(at_end() ? "JSON ends where a value is expected"
                : "expected a JSON value");
}

void Scanner::enter(bool object) {
  if (peek() != (object ? Kind::kObject : Kind::kArray))
    fail_expected(object ? "an object" : "an array");
  if (depth_ == kMaxJsonDepth)
    fail(fmt::format("JSON nested deeper than {}", kMaxJsonDepth));
  is_object_[depth_++] = object;
  first_ = true;
  ++at_;
}

void Scanner::enter_object() { enter(true); }
void Scanner::enter_array() { enter(false); }

// Steps to the next member: over a comma unless it is the first. Returns false
// at the closing character, which is consumed.
bool Scanner::next(char closing) {
  skip_white();
  if (current() == closing) {
    ++at_;
    --depth_;
    first_ = false;
    return false;
  }
  if (std::exchange(first_, false)) return true;
  if (current() != ',')
    fail(at_end() ? "JSON ends inside a container"
                  : fmt::format("expected ',' or '{}'", closing));
  ++at_;
  skip_white();
  if (current() == closing) fail("trailing comma in JSON");
  return true;
}

std::optional<std::string_view> Scanner::next_key() {
  if (!next('}')) return std::nullopt;
  skip_white();
  if (current() != '"') fail("expected a key in quotes");
  const std::string_view key = string();
  skip_white();
  if (current() != ':') fail("expected ':' after a key");
  ++at_;
  return key;
}

bool Scanner::next_item() { return next(']'); }

// The characters up to the next quote or backslash.
std::string_view Scanner::plain_run() {
  const size_t begin = at_;
  for (size_t plain = 8; plain == 8 && text_.size() - at_ >= 8; at_ += plain)
    plain = plain_bytes(text_.data() + at_);
  while (at_ < text_.size() && !kStops[static_cast<uint8_t>(text_[at_])]) ++at_;
  if (at_end()) fail("JSON ends inside a string");
  if (static_cast<uint8_t>(text_[at_]) < 0x20)
    fail("unescaped control character in a string");
  return text_.substr(begin, at_ - begin);
}

std::string_view Scanner::string() {
  if (peek() != Kind::kString) fail_expected("a string");
  ++at_;
  const std::string_view plain = plain_run();
  if (current() == '"') {
    ++at_;
    return plain;
  }
  scratch_ = plain;
  while (current() == '\\') {
    unescape();
    scratch_ += plain_run();
  }
  ++at_;
  return scratch_;
}

void Scanner::unescape() {
  constexpr std::string_view kShort = "\"\\/bfnrt";
  constexpr std::string_view kMeans = "\"\\/\b\f\n\r\t";
  ++at_;
  const char letter = current();
  if (const size_t i = kShort.find(letter); i != kShort.npos) {
    scratch_ += kMeans[i];
    ++at_;
    return;
  }
  if (letter != 'u') fail("unknown escape in a string");
  ++at_;
  char32_t code = hex4();
  if (code >= 0xdc00 && code < 0xe000) fail("lone surrogate in a string");
  if (code >= 0xd800 && code < 0xdc00) {
    if (text_.substr(at_, 2) != "\\u") fail("lone surrogate in a string");
    at_ += 2;
    const char32_t low = hex4();
    if (low < 0xdc00 || low >= 0xe000) fail("lone surrogate in a string");
    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
  }
  append_utf8(scratch_, code);
}

char32_t Scanner::hex4() {
  uint32_t code = 0;
  const std::string_view four = text_.substr(at_, 4);
  const auto [end, error] =
      std::from_chars(four.data(), four.data() + four.size(), code, 16);
  // from_chars takes a minus sign; codes are not negative.
  if (error != std::errc() || end != four.data() + 4 || four[0] == '-')
    fail("\\u needs four hexadecimal digits");
  at_ += 4;
  return code;
}

size_t Scanner::digits() {
  const size_t begin = at_;
  while (is_digit(current())) ++at_;
  return at_ - begin;
}

uint64_t Scanner::unsigned_integer() {
  constexpr std::string_view kWanted = "an integer from 0 to 2^64-1";
  if (peek() != Kind::kNumber) fail_expected(kWanted);
  const size_t begin = at_;
  const bool zero = current() == '0';
  const size_t count = digits();
  uint64_t value = 0;
  const auto [end, error] =
      std::from_chars(text_.data() + begin, text_.data() + at_, value);
  const char after = current();
  const bool plain = after != '.' && after != 'e' && after != 'E';
  if (error == std::errc() && plain && !(zero && count > 1)) return value;
  at_ = begin;
  fail_expected(kWanted);
}

std::string_view Scanner::number() {
  if (peek() != Kind::kNumber) fail_expected("a number");
  const size_t begin = at_;
  if (current() == '-') ++at_;
  if (options_.python_numbers && (current() == 'I' || current() == 'N')) {
    word(current() == 'I' ? "Infinity" : "NaN");
    return text_.substr(begin, at_ - begin);
  }
  const bool zero = current() == '0';
  const size_t whole = digits();
  bool good = whole > 0 && !(zero && whole > 1);
  if (current() == '.') {
    ++at_;
    good &= digits() > 0;
  }
  if (current() == 'e' || current() == 'E') {
    ++at_;
    if (current() == '+' || current() == '-') ++at_;
    good &= digits() > 0;
  }
  if (!good) fail("malformed number in JSON");
  return text_.substr(begin, at_ - begin);
}

void Scanner::word(std::string_view spelling) {
  if (!text_.substr(at_).starts_with(spelling)) fail("expected a JSON value");
  at_ += spelling.size();
}

void Scanner::literal() {
  const Kind kind = peek();
  if (kind < Kind::kTrue) fail_expected("true, false or null");
  word(name(kind));
}

// Without recursion: the scanner itself knows what it is inside.
std::string_view Scanner::skip() {
  const size_t outside = depth_;
  skip_white();
  const size_t begin = at_;
  do {
    switch (peek()) {
      case Kind::kObject:
        enter_object();
        break;
      case Kind::kArray:
        enter_array();
        break;
      case Kind::kString:
        string();
        break;
      case Kind::kNumber:
        number();
        break;
      default:
        literal();
    }
    while (depth_ > outside &&
           !(is_object_[depth_ - 1] ? next_key().has_value() : next_item())) {
    }
  } while (depth_ > outside);
  return text_.substr(begin, at_ - begin);
}

void Scanner::finish() {
  skip_white();
  if (!at_end() || options_.more) fail("more bytes after the JSON value");
}

}  // namespace ckpt::text
