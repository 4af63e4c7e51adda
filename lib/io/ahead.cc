#include "lib/io/ahead.h"

#include <fcntl.h>
#include <sys/uio.h>

#include <cstddef>

namespace ckpt::io {

bool is_cached(const Handle& file, uint64_t offset) {
  std::byte probe;
  iovec part{&probe, 1};
  const auto at = static_cast<off_t>(file.base() + offset);
  return ::preadv2(file.fd(), &part, 1, at, RWF_NOWAIT) >= 0;
}

void ask_for(const Handle& file, uint64_t offset, uint64_t count) {
  ::posix_fadvise(file.fd(), static_cast<off_t>(file.base() + offset),
                  static_cast<off_t>(count), POSIX_FADV_WILLNEED);
}

}  // namespace ckpt::io
