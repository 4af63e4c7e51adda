// SPDX-License-Identifier: Apache-2.0
// Reads that nobody waits for yet: a disk or a server answers many requests at
// once faster than one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "lib/io/file.h"
#include "lib/io/remote.h"

namespace ckpt::io {

// True if more than half of [offset, offset + count) is in the page cache;
// false also where that is unknown. Reads nothing.
bool is_cached(const Handle& file, uint64_t offset, uint64_t count);

// Has the kernel fetch [offset, offset + count) of the file. Doesn't wait, and
// fails silently.
void ask_for(const Handle& file, uint64_t offset, uint64_t count);
// The same of several ranges, in order.
void ask_for(const Handle& file, std::span<const Range> ranges, Asking how);

// Looks at many places of a file, one after the other, each of which would be a
// round trip: the next ones are asked for while those before them are read.
// Nothing for a file on this machine.
class LooksAhead {
 public:
  // Looks this far apart come in one request, with what lies between them. More
  // would save round trips that run side by side anyway, and a scan of small
  // records would fetch all of them.
  static constexpr uint64_t kGap = uint64_t{64} << 10;

  // `places` in the order of the looks; `window`: bytes asked for at a time.
  // The file must outlive this.
  LooksAhead(const Handle& file, std::vector<Range> places, uint64_t window);
  // Call before look i.
  void reach(size_t i);

 private:
  const Handle& file_;
  const std::vector<Range> places_;
  const uint64_t window_;
  size_t next_ = 0;  // the first one that was not asked for
  size_t half_ = 0;  // when to ask for more
};

// Many files that are read one after the other: each small one would be a round
// trip. Those on a server come whole, many at once, while the ones before them
// are read. Nothing for files on this machine. Any thread may use it.
class FilesAhead {
 public:
  // `paths` in the order of the reads; they may be absent.
  explicit FilesAhead(std::vector<std::string> paths);
  // Call before file i is looked at. Fails silently.
  void reach(size_t i);

 private:
  const std::vector<std::string> paths_;
  std::mutex mutex_;
  size_t next_ = 0;  // the first one that was not asked for
  size_t half_ = 0;  // when to ask for more
};

}  // namespace ckpt::io
