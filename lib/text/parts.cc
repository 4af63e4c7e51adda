// SPDX-License-Identifier: Apache-2.0
#include "lib/text/parts.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lib/text/utf8.h"

namespace ckpt::text {

Parts::Parts(uint64_t size, Read read, size_t part)
    : size_(size), read_(std::move(read)) {
  room_ = static_cast<size_t>(std::min<uint64_t>(size, part));
  buffer_ = std::make_unique_for_overwrite<char[]>(room_);
  advance(0);
}

void Parts::advance(size_t done) {
  const size_t rest = held_ - done;
  // The rest fills more than half of the room, so it needs a larger one.
  if (rest > room_ / 2) {
    room_ = static_cast<size_t>(
        std::min<uint64_t>(2 * uint64_t{room_} + 8, rest + (size_ - next_)));
    auto larger = std::make_unique_for_overwrite<char[]>(room_);
    std::memcpy(larger.get(), buffer_.get() + done, rest);
    buffer_ = std::move(larger);
  } else if (rest > 0) {
    std::memmove(buffer_.get(), buffer_.get() + done, rest);
  }
  const auto count =
      static_cast<size_t>(std::min<uint64_t>(room_ - rest, size_ - next_));
  read_(next_, {buffer_.get() + rest, count});
  next_ += count;
  held_ = rest + count;
  const std::string_view all(buffer_.get(), held_);
  text_ = all.substr(0, last() ? held_ : whole_chars(all));
}

}  // namespace ckpt::text
