#include "lib/io/ahead.h"

#include <fcntl.h>
#include <sys/uio.h>

#include <cstddef>

namespace ckpt::io {

// Where the answer is neither a byte nor "not yet", the file system can't say
// (NFS); then it is asked for.
void ask_for(const Handle& file, uint64_t offset, uint64_t count) {
  std::byte probe;
  iovec part{&probe, 1};
  const auto at = static_cast<off_t>(file.base() + offset);
  if (::preadv2(file.fd(), &part, 1, at, RWF_NOWAIT) >= 0) return;
  ::posix_fadvise(file.fd(), at, static_cast<off_t>(count),
                  POSIX_FADV_WILLNEED);
}

}  // namespace ckpt::io
