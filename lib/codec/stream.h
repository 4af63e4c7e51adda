// SPDX-License-Identifier: Apache-2.0
// A compressed range of a file as a readable file of its plain bytes.
//
//   file   | ... | packed_size bytes at packed_offset | ... |
//                   gzip, zstd … ─► size bytes, read by offset
//
// Memory does not depend on how much there is to read: one window and one input
// buffer, or (blosc) one block of the chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ckpt/catalog.h"
#include "lib/io/file.h"

namespace ckpt::codec {

// Reads forward; a backward read starts over (except for blosc). Never makes
// more than the declared size. Throws input_error for data that end early,
// continue past it, or leave packed bytes over. Not thread-safe: each belongs
// to one thread.
class Stream {
 public:
  // `source` gives codec, packed range, size and delta; it is copied. `record`
  // names it in messages. Throws resource_error if this build lacks the codec.
  Stream(std::shared_ptr<const io::Handle> file, const File& source,
         std::string record = {});
  ~Stream();
  Stream(Stream&&) noexcept;

  void read(uint64_t offset, std::span<std::byte> buffer);

  // Bytes of memory held now.
  uint64_t memory() const;

 private:
  class Source;
  class Forward;
  class Chunk;  // blosc
  class Stored;
  class Differences;
  std::unique_ptr<Source> source_;
};

// The plain bytes of a whole file whose size is not declared. Throws
// input_error if there are more than `limit`.
std::string decompress(const io::Handle& file, Codec codec, uint64_t limit,
                       const std::string& record = {});

// The number of plain bytes in a whole file: decompresses it all and keeps
// nothing. Throws input_error if there are more than `limit`.
uint64_t measure(const io::Handle& file, Codec codec, uint64_t limit,
                 const std::string& record = {});

}  // namespace ckpt::codec
