// SPDX-License-Identifier: Apache-2.0
// A chunk of c-blosc 1, read block by block.
//
//   0        1          2      3         4       8          12
//   | format | c format | flags| typesize| nbytes| blocksize| cbytes |
//   16
//   | u32 start of block 0 | … of block n-1 | blocks, in any order |
//
// All numbers are little-endian; starts count from byte 0. Flag 2: no blocks,
// the plain bytes are at byte 16. A block is decompressed by making it a chunk
// of its own, so neither the chunk nor its content is ever entirely in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ckpt/error.h"
#include "lib/io/file.h"

namespace ckpt::codec {

struct BloscHeader {
  uint8_t format = 0;
  uint8_t codec_format = 0;
  uint8_t flags = 0;
  uint8_t typesize = 0;
  uint32_t nbytes = 0;
  uint32_t blocksize = 0;
  uint32_t cbytes = 0;
  bool stored() const { return (flags & 2) != 0; }
};

class BloscChunk {
 public:
  // The chunk is bytes [offset, offset + size) of the file, which must outlive
  // this. Reads and checks the header and the block starts; throws input_error,
  // or resource_error if a block is too large to decompress or this build lacks
  // what it needs.
  BloscChunk(const io::Handle& file, uint64_t offset, uint64_t size,
             Where where);

  uint64_t size() const { return header_.nbytes; }
  void read(uint64_t offset, std::span<std::byte> buffer);
  uint64_t memory() const;

 private:
  void read_header();
  void read_starts();
  void check_blocks();
  void load(uint32_t block);

  const io::Handle& file_;
  const uint64_t offset_;
  const uint64_t packed_;
  const Where where_;
  BloscHeader header_;
  std::vector<uint32_t> starts_;
  std::vector<uint32_t> ends_;  // of each block: where the next one begins
  uint32_t loaded_ = UINT32_MAX;
  std::vector<std::byte> chunk_;  // one block as a chunk
  std::vector<std::byte> plain_;  // and its content
};

}  // namespace ckpt::codec
