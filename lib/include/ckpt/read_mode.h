// How payload is read from source files.
#pragma once

namespace ckpt {

enum class ReadMode {
  // Through the page cache; but a run that leaves nothing there (it moves more
  // than half of the machine's memory) reads as kUring what is not in it.
  kAuto,
  kBuffered,  // through the page cache
  kDirect,    // around it (O_DIRECT), one read at a time for each thread
  kUring,     // likewise, several reads under way for each thread (io_uring)
};

}  // namespace ckpt
