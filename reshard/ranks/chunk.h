// SPDX-License-Identifier: Apache-2.0
// Bytes for another rank's files, as carried by one message of an exchange:
//
//   | u64 offset | u64 count | u32 file | u32 0 | count bytes | next piece … |
//
// Adjacent pieces of a file become one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace ckpt::ranks {

class Chunk {
 public:
  // `memory`: headers included.
  explicit Chunk(std::span<std::byte> memory) : memory_(memory) {}

  // Room for at most `count` bytes of the file at `offset`, to be filled in by
  // the caller. Empty if the chunk is full.
  std::span<std::byte> add(uint32_t file, uint64_t offset, uint64_t count);
  void clear();

  std::span<const std::byte> bytes() const { return memory_.first(used_); }
  uint64_t payload() const { return payload_; }

 private:
  std::span<std::byte> memory_;
  uint64_t used_ = 0;
  uint64_t payload_ = 0;
  // The last piece: where its header is, and what would continue it.
  uint64_t header_ = 0;
  uint64_t next_offset_ = 0;
  uint32_t file_ = UINT32_MAX;
};

// Calls `write` for each piece of a message. Throws a bug_error if the message
// is incomplete.
using WritePiece = std::function<void(uint32_t file, uint64_t offset,
                                      std::span<const std::byte> bytes)>;
void for_each_piece(std::span<const std::byte> message,
                    const WritePiece& write);

}  // namespace ckpt::ranks
