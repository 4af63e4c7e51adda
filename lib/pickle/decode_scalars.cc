// SPDX-License-Identifier: Apache-2.0
// Numbers and texts of the pickle opcodes.
#include <charconv>
#include <cstring>

#include "lib/pickle/bigint.h"
#include "lib/pickle/codecs.h"
#include "lib/pickle/decoder.h"
#include "lib/text/format.h"
#include "lib/text/words.h"

namespace ckpt::pickle {
Id Decoder::integer_of_bytes(std::string_view little_endian) {
  if (little_endian.size() > 8)
    return doc_.add_big_int(decimal_of(little_endian));
  // Sign extension of the highest byte present.
  const bool negative = !little_endian.empty() && little_endian.back() < 0;
  uint64_t value = negative ? ~uint64_t{0} : 0;
  if (!little_endian.empty())
    std::memcpy(&value, little_endian.data(), little_endian.size());
  return doc_.add_int(static_cast<int64_t>(value));
}

Id Decoder::long4() {
  const auto size = in_.number<int32_t>();
  if (size < 0) fail("an integer of {} bytes", size);
  const auto count = static_cast<uint64_t>(size);
  // A decimal digit takes 0.415 bytes; the conversion is quadratic.
  if (count <= in_.left() && count > limits_.decimal * uint64_t{5} / 12)
    throw unsafe_error({in_.path(), {}},
                       "pickle at byte {}: an integer of {} bytes, the limit "
                       "is {} digits",
                       at_, size, limits_.decimal);
  return integer_of_bytes(in_.take(count));
}

Id Decoder::integer_of_text(std::string_view text, bool is_long) {
  if (!is_long && (text == "00" || text == "01"))
    return doc_.add_bool(text == "01");
  if (is_long && text.ends_with('L')) text.remove_suffix(1);
  const auto decimal = plain_decimal(text);
  if (!decimal)
    fail("'{}' is not an integer", text::printable(text.substr(0, 40)));
  return doc_.add_big_int(*decimal);
}

Id Decoder::float_of_text(std::string_view text) {
  std::string_view digits = text::trimmed(text, " \t\r\v\f");
  if (digits.starts_with('+')) digits.remove_prefix(1);
  double value = 0;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, value);
  if (error != std::errc() || stop != end)
    fail("'{}' is not a float", text::printable(text.substr(0, 40)));
  return doc_.add_float(value);
}

Id Decoder::string(uint64_t size) {
  check_size(size);
  const std::string_view text = in_.take(size);
  if (!is_python_utf8(text)) fail("a string of {} bytes is not UTF-8", size);
  return doc_.add_text(Type::kString, text);
}

Id Decoder::bytes(Type type, uint64_t size) {
  check_size(size);
  return doc_.add_text(type, in_.take(size));
}

// Python 2's str: text if it can be, else bytes.
Id Decoder::python2_string(std::string_view bytes) {
  const bool text = is_python_utf8(bytes) && !has_surrogates(bytes);
  return doc_.add_text(text ? Type::kString : Type::kBytes, bytes);
}

Id Decoder::quoted_string(std::string_view line) {
  const auto bytes = from_quoted(text::trimmed(line, " \t\r\v\f"));
  if (!bytes) fail("a string that is not quoted as Python does");
  return python2_string(*bytes);
}

Id Decoder::escaped_string(std::string_view line) {
  const auto text = from_raw_unicode_escape(line);
  if (!text) fail("a string with a broken \\u escape");
  return doc_.add_text(Type::kString, *text);
}

uint64_t Decoder::memo_index(std::string_view line) {
  const std::string_view digits = text::trimmed(line, " \t\r\v\f");
  uint64_t index = 0;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, index);
  if (error != std::errc() || stop != end)
    fail("'{}' is not a memo index", text::printable(line.substr(0, 40)));
  return index;
}

}  // namespace ckpt::pickle
