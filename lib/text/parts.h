// SPDX-License-Identifier: Apache-2.0
// A long text that is read part by part: a scanner needs to hold only a part of
// it, which stays in the second-level cache.
//
//   | done, dropped | text() ........ | not read yet |
//                   └ advance(n): n bytes of it are done, more is behind it
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

namespace ckpt::text {

class Parts {
 public:
  // Fills `to` with the bytes from `at` on, or throws.
  using Read = std::function<void(uint64_t at, std::span<char> to)>;
  static constexpr size_t kPart = 256 << 10;

  Parts(uint64_t size, Read read, size_t part = kPart);
  // A text in memory: one part.
  explicit Parts(std::string_view text) : text_(text) {}

  // Ends between two characters, if it is UTF-8. Valid until advance().
  std::string_view text() const { return text_; }
  bool last() const { return next_ == size_; }
  // Drops the first `done` bytes. Then text() has more after them than before,
  // unless it was the last.
  void advance(size_t done);

 private:
  uint64_t size_ = 0;
  uint64_t next_ = 0;  // the first byte not yet read
  Read read_;
  size_t room_ = 0;
  size_t held_ = 0;  // bytes in the buffer: text_ and a cut character
  std::unique_ptr<char[]> buffer_;
  std::string_view text_;
};

}  // namespace ckpt::text
