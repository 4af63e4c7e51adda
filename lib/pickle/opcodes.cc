// SPDX-License-Identifier: Apache-2.0
#include "lib/pickle/opcodes.h"

#include <bit>
#include <cstdint>
#include <tuple>
#include <vector>

#include "ckpt/error.h"
#include "lib/pickle/bigint.h"
#include "lib/pickle/codecs.h"
#include "lib/pickle/names.h"

namespace ckpt::pickle {
namespace {

// Splits "Outer.Inner" at its dots; keeps whole a name that Python could not
// have written.
std::vector<std::string_view> parts_of(std::string_view name) {
  std::vector<std::string_view> parts;
  for (std::string_view rest = name;;) {
    const size_t dot = rest.find('.');
    parts.push_back(rest.substr(0, dot));
    if (parts.back().empty()) return {name};
    if (dot == std::string_view::npos) return parts;
    rest.remove_prefix(dot + 1);
  }
}

bool has_newline(std::string_view name) {
  return name.find('\n') != std::string_view::npos;
}

}  // namespace

void Opcodes::integer(int64_t value) {
  if (value >= 0 && value <= 0xFF) {
    out_ += 'K';
    number(static_cast<uint8_t>(value));
  } else if (value >= 0 && value <= 0xFFFF) {
    out_ += 'M';
    number(static_cast<uint16_t>(value));
  } else if (value == static_cast<int32_t>(value)) {
    out_ += 'J';
    number(static_cast<int32_t>(value));
  } else {
    // The fewest bytes of two's complement that keep the sign.
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    const uint64_t magnitude =
        static_cast<uint64_t>(value < 0 ? ~value : value);
    long_integer(
        {bytes, static_cast<size_t>(std::bit_width(magnitude)) / 8 + 1});
  }
}

void Opcodes::big_integer(std::string_view decimal) {
  long_integer(bytes_of(decimal));
}

void Opcodes::long_integer(std::string_view little_endian) {
  if (little_endian.size() <= 0xFF) {
    out_ += '\x8A';
    number(static_cast<uint8_t>(little_endian.size()));
  } else {
    out_ += '\x8B';
    number(static_cast<int32_t>(little_endian.size()));
  }
  out_ += little_endian;
}

void Opcodes::real(double value) {
  out_ += 'G';  // big-endian
  number(__builtin_bswap64(std::bit_cast<uint64_t>(value)));
}

void Opcodes::string(std::string_view text) {
  if (text.size() > UINT32_MAX)
    throw unfaithful_error({}, "a text of {} bytes has no pickle", text.size());
  out_ += 'X';
  number(static_cast<uint32_t>(text.size()));
  out_ += text;
}

void Opcodes::bytes(std::string_view bytes) {
  if (bytes.empty()) {
    global("builtins", "bytes");
    out_ += ")R";
    return;
  }
  global("_codecs", "encode");
  string(from_latin1(bytes));
  string("latin1");
  out_ += "\x86R";
}

void Opcodes::byte_array(std::string_view content) {
  global("builtins", "bytearray");
  if (content.empty()) {
    out_ += ")R";
    return;
  }
  bytes(content);
  out_ += "\x85R";
}

void Opcodes::global(std::string_view module, std::string_view name) {
  if (has_newline(module) || has_newline(name))
    throw unfaithful_error({},
                           "a global with a newline in its name has no pickle");
  std::tie(module, name) = python2_name(module, name);
  out_ += 'c';
  out_ += module;
  out_ += '\n';
  out_ += name;
  out_ += '\n';
}

void Opcodes::dotted_global(std::string_view module, std::string_view name) {
  const std::vector<std::string_view> parts = parts_of(name);
  for (size_t i = 1; i < parts.size(); ++i) global("builtins", "getattr");
  global(module, parts[0]);
  for (size_t i = 1; i < parts.size(); ++i) {
    string(parts[i]);
    out_ += "\x86R";
  }
}

void Opcodes::put(uint32_t index) { memo('q', 'r', index); }
void Opcodes::get(uint32_t index) { memo('h', 'j', index); }

void Opcodes::memo(char small, char large, uint32_t index) {
  if (index <= 0xFF) {
    out_ += small;
    number(static_cast<uint8_t>(index));
  } else {
    out_ += large;
    number(index);
  }
}

}  // namespace ckpt::pickle
