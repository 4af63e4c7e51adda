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
#include "lib/io/file.h"
#include "lib/zip/inflate.h"

namespace ckpt::reshard {

// Open handles by path; the least recently used is closed when there are too
// many. Reopening costs more than reading a header, so keep what fits: sources
// and targets together stay below the usual limit of 1024 for a process.
class HandleCache {
 public:
  explicit HandleCache(bool writable = false, size_t most = 256)
      : writable_(writable), most_(most) {}
  std::shared_ptr<const io::Handle> get(const std::string& path);

 private:
  using Order = std::list<std::string>;
  struct Open {
    std::shared_ptr<const io::Handle> handle;
    Order::iterator used;
  };
  const bool writable_;
  const size_t most_;
  std::mutex mutex_;
  Order order_;  // most recently used first
  std::unordered_map<std::string, Open> open_;
};

// One thread's view of the source files.
class SourceReader {
 public:
  SourceReader(const std::vector<File>& files, HandleCache& handles)
      : files_(files), handles_(handles) {}
  // Reads exactly buffer.size() bytes of files[file] at `offset`.
  void read(uint32_t file, uint64_t offset, std::span<std::byte> buffer);
  uint64_t bytes_read() const { return bytes_read_; }

 private:
  const io::Handle& raw(uint32_t file);
  zip::InflateReader& inflated(uint32_t file);

  const std::vector<File>& files_;
  HandleCache& handles_;
  uint64_t bytes_read_ = 0;
  uint32_t current_ = UINT32_MAX;  // the file of handle_
  std::shared_ptr<const io::Handle> handle_;
  uint32_t inflated_ = UINT32_MAX;  // the file of inflater_
  std::unique_ptr<zip::InflateReader> inflater_;
};

}  // namespace ckpt::reshard
