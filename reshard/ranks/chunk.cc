// SPDX-License-Identifier: Apache-2.0
#include "reshard/ranks/chunk.h"

#include <algorithm>
#include <cstring>

#include "ckpt/error.h"

namespace ckpt::ranks {
namespace {

struct Header {
  uint64_t offset = 0;
  uint64_t count = 0;
  uint32_t file = 0;
  uint32_t zero = 0;
};

}  // namespace

void Chunk::clear() {
  used_ = payload_ = 0;
  file_ = UINT32_MAX;
}

std::span<std::byte> Chunk::add(uint32_t file, uint64_t offset,
                                uint64_t count) {
  const bool goes_on = file == file_ && offset == next_offset_;
  const uint64_t needed = goes_on ? 0 : sizeof(Header);
  if (used_ + needed >= memory_.size()) return {};
  const uint64_t taken = std::min(count, memory_.size() - used_ - needed);
  Header header{.offset = offset, .count = 0, .file = file};
  if (goes_on)
    std::memcpy(&header, memory_.data() + header_, sizeof(Header));
  else
    header_ = used_;
  header.count += taken;
  std::memcpy(memory_.data() + header_, &header, sizeof(Header));
  file_ = file;
  next_offset_ = offset + taken;
  const std::span<std::byte> room(memory_.data() + used_ + needed, taken);
  used_ += needed + taken;
  payload_ += taken;
  return room;
}

void for_each_piece(std::span<const std::byte> message,
                    const WritePiece& write) {
  while (!message.empty()) {
    Header header;
    if (message.size() < sizeof(header))
      throw bug_error({}, "a message of payload ends in a header of {} bytes",
                      message.size());
    std::memcpy(&header, message.data(), sizeof(header));
    message = message.subspan(sizeof(header));
    if (header.count > message.size())
      throw bug_error({}, "a message has {} bytes of file {}, not {}",
                      message.size(), header.file, header.count);
    write(header.file, header.offset, message.first(header.count));
    message = message.subspan(header.count);
  }
}

}  // namespace ckpt::ranks
