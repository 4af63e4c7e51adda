// SPDX-License-Identifier: Apache-2.0
// A compressed range of a file as a readable file of its plain bytes.
//
//   file   | ... | packed_size bytes at packed_offset | ... |
//                   gzip, zstd … ─► size bytes, read by offset
//
// How much memory it takes does not depend on how much there is to read: one
// window and one input buffer, or (blosc) one block of the chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ckpt/catalog.h"
#include "lib/io/file.h"

namespace ckpt::codec {

// Reads forward; a read that goes backwards starts over (not so for blosc).
// Never makes more than the declared size; data that end early, go on past
// it, or leave packed bytes over are an input_error. Not thread-safe: one
// thread owns one.
class Stream {
 public:
  // `source` says codec, packed range, size and delta; it is copied. `record`
  // names it in messages. A resource_error if this build lacks the codec.
  Stream(std::shared_ptr<const io::Handle> file, const File& source,
         std::string record = {});
  ~Stream();
  Stream(Stream&&) noexcept;

  void read(uint64_t offset, std::span<std::byte> buffer);

  // Bytes that it holds now.
  uint64_t memory() const;

 private:
  class Source;
  class Forward;
  class Chunk;  // blosc
  class Stored;
  class Differences;
  std::unique_ptr<Source> source_;
};

// The plain bytes of a whole file whose size nobody declares. An input_error
// if there are more than `limit`.
std::string decompress(const io::Handle& file, Codec codec, uint64_t limit,
                       const std::string& record = {});

// How many plain bytes a whole file holds: decompresses it all and keeps
// nothing. An input_error if there are more than `limit`.
uint64_t measure(const io::Handle& file, Codec codec, uint64_t limit,
                 const std::string& record = {});

}  // namespace ckpt::codec
