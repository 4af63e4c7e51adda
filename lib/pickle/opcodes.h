// SPDX-License-Identifier: Apache-2.0
// The opcodes of protocol 2 for values without parts.
#pragma once

#include <cstring>
#include <string>
#include <string_view>

namespace ckpt::pickle {

class Opcodes {
 public:
  // Appends opcodes that need no argument.
  Opcodes& operator+=(char opcode) {
    out_ += opcode;
    return *this;
  }
  Opcodes& operator+=(std::string_view opcodes) {
    out_ += opcodes;
    return *this;
  }
  void repeat(char opcode, size_t count) { out_.append(count, opcode); }

  void integer(int64_t value);
  void big_integer(std::string_view decimal);
  void real(double value);
  void string(std::string_view text);
  void bytes(std::string_view bytes);       // a call of _codecs.encode
  void byte_array(std::string_view bytes);  // a call of bytearray
  // Takes Python 3 names. Throws unfaithful_error for a name with a newline.
  void global(std::string_view module, std::string_view name);
  // Under protocol 2 a nested class is getattr(outer, "inner").
  void dotted_global(std::string_view module, std::string_view name);
  void put(uint32_t index);  // in the memo
  void get(uint32_t index);

  std::string take() { return std::move(out_); }

 private:
  template <class T>
  void number(T value) {  // little-endian
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    out_.append(bytes, sizeof value);
  }
  void long_integer(std::string_view little_endian);
  void memo(char small, char large, uint32_t index);

  std::string out_;
};

}  // namespace ckpt::pickle
