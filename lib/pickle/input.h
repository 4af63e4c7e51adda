// SPDX-License-Identifier: Apache-2.0
// The bytes of a pickle, in memory or read from a file in blocks.
#pragma once

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "ckpt/error.h"
#include "lib/io/file.h"

namespace ckpt::pickle {

class Input {
 public:
  // Reads at most `limit` bytes; throws unsafe_error beyond that.
  Input(std::span<const std::byte> bytes, std::string path, uint64_t limit);
  Input(const io::Handle& file, uint64_t offset, uint64_t end, uint64_t limit);

  const std::string& path() const { return path_; }
  // The position of the next byte: in the span or in the file.
  uint64_t position() const {
    return base_ + static_cast<uint64_t>(at_ - begin_);
  }
  uint64_t left() const { return ready() + beyond_; }

  // The next `count` bytes; they are valid until the next call.
  std::string_view take(uint64_t count) {
    if (count > ready()) fill(count);
    const char* bytes = at_;
    at_ += count;
    return {bytes, count};
  }
  // Those of the next bytes that are in memory.
  std::string_view ahead() const { return {at_, ready()}; }
  uint8_t byte() { return static_cast<uint8_t>(take(1)[0]); }
  // A little-endian unsigned number.
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  // The bytes up to the next newline, which is consumed too.
  std::string_view line(uint64_t longest);

 private:
  uint64_t ready() const { return static_cast<uint64_t>(end_ - at_); }
  void fill(uint64_t count);
  [[noreturn]] void throw_short(uint64_t count) const;

  std::string path_;
  const io::Handle* file_ = nullptr;
  const char* begin_ = nullptr;  // what is in memory: [begin, end)
  const char* at_ = nullptr;
  const char* end_ = nullptr;
  uint64_t base_ = 0;    // position of begin_
  uint64_t beyond_ = 0;  // bytes after end_ that can be read
  uint64_t limit_ = 0;   // if it cuts off the bytes
  std::unique_ptr<char[]> buffer_;
};

}  // namespace ckpt::pickle
