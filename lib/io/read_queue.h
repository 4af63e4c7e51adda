// SPDX-License-Identifier: Apache-2.0
// Direct reads of one thread, submitted before they are needed: a disk, an
// array or a server reaches its bandwidth only with many requests in flight.
//
//   want     ranges in the order in which they will be read
//   slots    the first few of them are in flight (io_uring), in memory of
//            their own
//   take     waits for the range's slot, copies it, and lets the next one start
//
// A range that was wanted but is skipped is dropped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "lib/io/buffer.h"
#include "lib/io/direct.h"

namespace ckpt::io {

class Ring;

class ReadQueue {
 public:
  using File = std::shared_ptr<const DirectFile>;

  // At most `ahead` reads that nobody waits for yet are in flight; ranges have
  // at most `bytes` bytes. Throws resource_error if there is no io_uring and
  // `ahead` is not 0.
  ReadQueue(uint32_t ahead, uint64_t bytes);
  ReadQueue(const ReadQueue&) = delete;
  ReadQueue& operator=(const ReadQueue&) = delete;
  ~ReadQueue();

  // True if the kernel, and any sandbox of this process, allow io_uring.
  static bool has_ring();
  // The memory of a queue for ranges of `bytes` bytes.
  static uint64_t memory(uint32_t ahead, uint64_t bytes);

  // Announces bytes that will be read after all those wanted before. Longer
  // ranges are ignored.
  void want(const File& file, uint64_t offset, uint64_t bytes);
  // Waits for bytes that were wanted and copies them; returns false if they
  // were not wanted. Throws input_error past the end, saying where the file
  // ends, and kIo.
  bool take(const File& file, uint64_t offset, std::span<std::byte> buffer);
  // Reads any bytes at once; throws as take() does.
  void read(const DirectFile& file, uint64_t offset,
            std::span<std::byte> buffer);
  // Forgets what was wanted.
  void clear();

 private:
  struct Wanted {
    File file;
    uint64_t offset = 0;
    uint64_t bytes = 0;
    uint32_t slot = 0;
  };
  struct Slot {
    bool busy = false;  // the kernel writes into it
    int result = 0;     // bytes, or a negated errno
  };

  std::span<std::byte> slot_memory(uint32_t slot) const;
  void start_some();
  void drop_first();
  void settle(uint32_t slot);  // waits until it is not busy
  // Copies what a slot has read, and reads what it has not.
  void empty(const Wanted& wanted, std::span<std::byte> buffer);

  const uint32_t ahead_;
  const uint64_t bytes_;
  const Buffer buffer_;  // a slot for each read ahead, and one for read()
  std::vector<Slot> slots_;
  std::deque<Wanted> wanted_;   // those in flight first
  size_t started_ = 0;          // of wanted_
  uint32_t next_slot_ = 0;      // slots are filled and emptied in turn
  std::unique_ptr<Ring> ring_;  // last: destroyed before the memory it fills
};

}  // namespace ckpt::io
