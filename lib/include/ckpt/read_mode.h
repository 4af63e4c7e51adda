// SPDX-License-Identifier: Apache-2.0
// How payload is read from source files.
#pragma once

namespace ckpt {

enum class ReadMode {
  // Through the page cache. But as kUring what is not in it, in a run of one
  // process that writes a checkpoint (the source is hardly read again) and in
  // one that leaves nothing there (it moves more than half of the machine's
  // memory), where the kernel allows it.
  kAuto,
  kBuffered,  // through the page cache
  kDirect,    // around it (O_DIRECT), one read at a time for each thread
  kUring,     // likewise, several reads under way for each thread (io_uring)
};

}  // namespace ckpt
