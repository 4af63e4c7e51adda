// SPDX-License-Identifier: Apache-2.0
// Reading a catalog's files: handles that stay open, compressed ranges as
// files of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "ckpt/catalog.h"
#include "lib/codec/stream.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "reshard/sources/decode.h"
#include "reshard/sources/direct.h"
#include "reshard/sources/file_cache.h"

namespace ckpt::reshard {

// Open handles; sources and targets together take half of the files that a
// process may have open.
class HandleCache : public FileCache<io::Handle> {
 public:
  explicit HandleCache(bool writable = false, size_t most = most_open_files());

  // What decode_fp8.cc found in the files: no longer than they are open, for
  // the next run may read others.
  class Maxima;
  Maxima& maxima();

 private:
  std::once_flag made_;
  std::shared_ptr<Maxima> maxima_;
};

// Source files that are open, for all threads.
struct OpenSources {
  HandleCache handles;
  DirectCache direct;
};

// One thread's view of the source files.
class SourceReader {
 public:
  // Streams of compressed files stay open until they hold more than
  // `stream_memory` bytes together: a job reads its lanes by turns, and a
  // stream that is opened again decompresses all over again.
  SourceReader(const std::vector<File>& files, HandleCache& handles,
               uint64_t stream_memory = uint64_t{64} << 20)
      : files_(files), handles_(handles), stream_memory_(stream_memory) {}
  // Reads exactly buffer.size() bytes of files[file] at `offset`. False if
  // they were read around the page cache.
  bool read(uint32_t file, uint64_t offset, std::span<std::byte> buffer);
  // From here on reads go to `direct` first.
  void read_around(DirectReader& direct) { direct_ = &direct; }
  // True if the file is none on disk, or has most of these bytes in the page
  // cache.
  bool is_cached(uint32_t file, uint64_t offset, uint64_t bytes);
  // What these bytes take where they are stored. Of a packed file on a server
  // that is about the same share of it: streams are read front to back.
  io::Range stored(uint32_t file, uint64_t offset, uint64_t bytes) const;
  // These bytes will be read soon: a disk or a server that is asked for many
  // at once is faster. Nothing for files that are in memory, or packed on a
  // disk.
  void ask_for(uint32_t file, uint64_t offset, uint64_t bytes);
  // The same of stored().
  void ask_for(uint32_t file, std::span<const io::Range> ranges,
               io::Asking how);
  // True if a read would not wait for a server.
  bool is_there(uint32_t file, uint64_t offset, uint64_t bytes);
  uint64_t bytes_read() const {
    return bytes_read_ + (decode_ ? decode_->bytes_read() : 0);
  }
  // The open file, valid until the next call; null if it is packed, in memory,
  // or none.
  const io::Handle* raw_file(uint32_t file) {
    return files_[file].codec == Codec::kRaw ? &raw(file) : nullptr;
  }

 private:
  bool is_asked(uint32_t file) const;
  struct Open {
    uint32_t file = UINT32_MAX;
    uint64_t memory = 0;
    std::unique_ptr<codec::Stream> stream;
  };
  const io::Handle& raw(uint32_t file);
  void read_stream(uint32_t file, uint64_t offset, std::span<std::byte> buffer);
  // What is made while it is read (made.h).
  void make(const File& file, uint64_t offset, std::span<std::byte> buffer);
  // What is made of codes (lib/decoding.h).
  void decode(const File& file, uint64_t offset, std::span<std::byte> buffer);
  Open& stream(uint32_t file);
  void close_some();

  const std::vector<File>& files_;
  HandleCache& handles_;
  const uint64_t stream_memory_;
  DirectReader* direct_ = nullptr;
  uint64_t bytes_read_ = 0;
  uint32_t current_ = UINT32_MAX;  // the file of handle_
  std::shared_ptr<const io::Handle> handle_;
  std::list<Open> streams_;  // most recently used first
  std::unordered_map<uint32_t, std::list<Open>::iterator> stream_of_;
  uint64_t held_ = 0;  // bytes of memory of all streams
  std::unique_ptr<DecodeReader> decode_;
};

}  // namespace ckpt::reshard
