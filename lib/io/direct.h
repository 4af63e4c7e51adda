// SPDX-License-Identifier: Apache-2.0
// Files read past the page cache (O_DIRECT): a third of the processor time for
// data that is not cached (docs/performance.md), and no other file is evicted.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace ckpt::io {

class DirectFile {
 public:
  // Null if the file system has no such reads. Throws an Error that names the
  // path, as Handle::open_read does.
  static std::shared_ptr<const DirectFile> open(const std::string& path);

  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;
  ~DirectFile();

  // File offsets, sizes and memory addresses must be multiples of this; a power
  // of two, at most kMostAlign.
  uint64_t align() const { return align_; }
  static constexpr uint64_t kMostAlign = 4096;

  const std::string& path() const { return path_; }
  int fd() const { return fd_; }

  // Reads aligned bytes until the buffer is full or the file ends; returns how
  // many. Throws kIo.
  uint64_t read(uint64_t offset, std::span<std::byte> buffer) const;

 private:
  DirectFile(std::string path, int fd, uint64_t align)
      : path_(std::move(path)), fd_(fd), align_(align) {}
  const std::string path_;
  const int fd_;
  const uint64_t align_;
};

}  // namespace ckpt::io
