// SPDX-License-Identifier: Apache-2.0
#include "lib/pickle/input.h"

#include <algorithm>
#include <utility>

namespace ckpt::pickle {
namespace {

constexpr uint64_t kBlock = uint64_t{1} << 20;

}  // namespace

Input::Input(std::span<const std::byte> bytes, std::string path, uint64_t limit)
    : path_(std::move(path)) {
  begin_ = at_ = reinterpret_cast<const char*>(bytes.data());
  end_ = begin_ + std::min<uint64_t>(bytes.size(), limit);
  if (bytes.size() > limit) limit_ = limit;
}

Input::Input(const io::Handle& file, uint64_t offset, uint64_t end,
             uint64_t limit)
    : path_(file.path()), file_(&file), base_(offset) {
  end = std::min(end, file.size());
  const uint64_t count = offset < end ? end - offset : 0;
  beyond_ = std::min(count, limit);
  if (count > limit) limit_ = limit;
}

void Input::throw_short(uint64_t count) const {
  if (limit_ != 0)
    throw unsafe_error({path_, {}}, "the pickle is larger than {} bytes",
                       limit_);
  throw input_error({path_, {}},
                    "the pickle is cut short: at byte {} it wants {} more "
                    "bytes, {} are left",
                    position(), count, left());
}

// Moves what is left to the front of the buffer and reads more after it. The
// buffer grows with `count` only once that many bytes are known to be there.
void Input::fill(uint64_t count) {
  if (count > left()) throw_short(count);
  const uint64_t kept = ready();
  const uint64_t read = std::min(beyond_, std::max(count - kept, kBlock));
  auto next = std::make_unique_for_overwrite<char[]>(kept + read);
  if (kept != 0) std::memcpy(next.get(), at_, kept);
  const uint64_t position = this->position();
  file_->read(position + kept,
              std::as_writable_bytes(std::span(next.get() + kept, read)));
  buffer_ = std::move(next);
  begin_ = at_ = buffer_.get();
  end_ = begin_ + kept + read;
  base_ = position;
  beyond_ -= read;
}

std::string_view Input::line(uint64_t longest) {
  uint64_t searched = 0;
  while (true) {
    const uint64_t until = std::min(ready(), longest + 1);
    const void* found =
        searched < until ? std::memchr(at_ + searched, '\n', until - searched)
                         : nullptr;
    if (found != nullptr) {
      const auto size =
          static_cast<uint64_t>(static_cast<const char*>(found) - at_);
      return take(size + 1).substr(0, size);
    }
    if (until > longest)
      throw unsafe_error({path_, {}},
                         "the text at byte {} is longer than {} bytes",
                         position(), longest);
    if (beyond_ == 0) throw_short(until + 1);
    searched = until;
    fill(until + 1);
  }
}

}  // namespace ckpt::pickle
