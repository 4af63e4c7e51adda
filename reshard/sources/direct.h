// SPDX-License-Identifier: Apache-2.0
// One thread's reads past the page cache, from the source files that allow it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ckpt/catalog.h"
#include "lib/io/direct.h"
#include "lib/io/read_queue.h"
#include "reshard/sources/file_cache.h"

namespace ckpt::reshard {

class DirectCache : public FileCache<io::DirectFile> {
 public:
  explicit DirectCache(size_t most = most_open_files())
      : FileCache(io::DirectFile::open, most) {}
};

// Which of a run's reads go past the page cache.
struct DirectReads {
  bool on = false;
  // Only what was wanted. Otherwise everything that is long enough, and a file
  // system without such reads is an error.
  bool wanted_only = false;
  uint32_t ahead = 0;  // reads under way for each thread
};

class DirectReader {
 public:
  // `block`: the longest range that is read ahead. A read of less than an
  // eighth of it goes through the page cache: the kernel then reads whole pages
  // and more, which hold what is needed next.
  DirectReader(const std::vector<File>& files, DirectCache& cache,
               const DirectReads& reads, uint64_t block);

  bool wanted_only() const { return wanted_only_; }
  // True if reads of that many bytes of the file go past the page cache.
  bool takes(uint32_t file, uint64_t bytes) const {
    return bytes >= least_ && files_[file].codec == Codec::kRaw;
  }
  // Announces a read of these bytes, after all that were announced before. Does
  // nothing if it goes through the page cache.
  void want(uint32_t file, uint64_t offset, uint64_t bytes);
  // False, and nothing is read, if these bytes go through the page cache.
  // Throws resource_error if everything had to go past it and the file system
  // can't.
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
