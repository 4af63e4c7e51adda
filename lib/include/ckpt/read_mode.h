// SPDX-License-Identifier: Apache-2.0
// How payload is read from source files.
#pragma once

namespace ckpt {

enum class ReadMode {
  // Through the page cache. But what is not cached is read as with kUring,
  // where the kernel allows it, in a run of one process that writes a
  // checkpoint (the source is hardly read again) and in one that leaves nothing
  // in the cache (it moves more than half of the machine's memory).
  kAuto,
  kBuffered,  // through the page cache
  kDirect,    // past it (O_DIRECT), one read at a time for each thread
  kUring,     // likewise, several reads in flight for each thread (io_uring)
};

}  // namespace ckpt
