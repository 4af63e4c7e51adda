// SPDX-License-Identifier: Apache-2.0
// Drop-behind: a run larger than memory must not push other files out of the
// page cache, or pile up dirty pages until the kernel stops every writer.
//
//   item n    written: its writeback is started
//   item n-1  its writeback is waited for, then its pages leave the cache
//   item n    read: its pages leave the cache
//
// So a thread has about two items' pages (2 x 16 MiB) dirty or in flight.
#pragma once

#include <cstdint>
#include <vector>

namespace ckpt::reshard {

struct Plan;
class HandleCache;
class Output;

// The range of each file that one thread touched in an item.
class Behind {
 public:
  struct Range {
    uint32_t file = 0;
    uint64_t begin = 0;
    uint64_t end = 0;
  };

  void turn_on() { on_ = true; }
  bool on() const { return on_; }
  void read(uint32_t file, uint64_t offset, uint64_t bytes) {
    if (on_) add(reads_, file, offset, bytes);
  }
  void wrote(uint32_t file, uint64_t offset, uint64_t bytes) {
    if (on_) add(writes_, file, offset, bytes);
  }

  // Called at the end of an item; returns the work to do.
  struct Work {
    std::vector<Range> dropped;  // source: drop from the cache
    std::vector<Range> started;  // target: start writeback
    std::vector<Range> settled;  // target: wait for writeback, drop
  };
  Work next();

 private:
  static void add(std::vector<Range>& ranges, uint32_t file, uint64_t offset,
                  uint64_t bytes);
  bool on_ = false;
  std::vector<Range> reads_, writes_, started_;
};

// The machine's memory in bytes. A run that moves more than half of it leaves
// nothing in the cache.
uint64_t memory_bytes();

}  // namespace ckpt::reshard
