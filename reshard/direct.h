// SPDX-License-Identifier: Apache-2.0
// One thread's reads around the page cache, of the source files that can be
// read so.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ckpt/catalog.h"
#include "lib/io/direct.h"
#include "lib/io/read_queue.h"
#include "reshard/file_cache.h"

namespace ckpt::reshard {

class DirectCache : public FileCache<io::DirectFile> {
 public:
  explicit DirectCache(size_t most = most_open_files())
      : FileCache(io::DirectFile::open, most) {}
};

// What of a run is read around the page cache.
struct DirectReads {
  bool on = false;
  // Only what was wanted is; else everything that is long enough, and a file
  // system that has no such reads is an error.
  bool wanted_only = false;
  uint32_t ahead = 0;  // reads under way for each thread
};

class DirectReader {
 public:
  // `block`: the longest range that is read ahead. A read of less than an
  // eighth of it goes through the page cache: the kernel then reads whole
  // pages and some more, which are the neighbours of what is needed next.
  DirectReader(const std::vector<File>& files, DirectCache& cache,
               const DirectReads& reads, uint64_t block);

  bool wanted_only() const { return wanted_only_; }
  // True if reads of so many bytes of the file are not for the page cache.
  bool takes(uint32_t file, uint64_t bytes) const {
    return bytes >= least_ && files_[file].codec == Codec::kRaw;
  }
  // These bytes will be read, after all that were wanted before. Nothing if
  // they are for the page cache.
  void want(uint32_t file, uint64_t offset, uint64_t bytes);
  // False if they are for the page cache: then nothing was read. Throws a
  // resource_error if all was to be read around it and the file system can't.
  bool read(uint32_t file, uint64_t offset, std::span<std::byte> buffer);

 private:
  const io::ReadQueue::File& file(uint32_t file);

  const std::vector<File>& files_;
  DirectCache& cache_;
  const bool wanted_only_;
  const uint64_t least_;
  io::ReadQueue queue_;
  uint32_t current_ = UINT32_MAX;  // the file of file_
  io::ReadQueue::File file_;
};

}  // namespace ckpt::reshard
