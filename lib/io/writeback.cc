// SPDX-License-Identifier: Apache-2.0
#include "lib/io/writeback.h"

#include <fcntl.h>

#include <atomic>
#include <cerrno>

#include "ckpt/error.h"

namespace ckpt::io {
namespace {

std::atomic<int> lost = 0;

}  // namespace

void note_lost_write(int errnum) { lost = errnum; }

void throw_lost_writes() {
  if (const int why = lost.exchange(0))
    throw io_error({}, "a file could not be closed: what was written is lost",
                   why);
}

void wait_writeback(const Handle& file, uint64_t offset, uint64_t count) {
  const unsigned int flags = SYNC_FILE_RANGE_WAIT_BEFORE |
                             SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  int result = 0;
  do {
    result = ::sync_file_range(file.fd(), static_cast<off_t>(offset),
                               static_cast<off_t>(count), flags);
  } while (result != 0 && errno == EINTR);
  // A file system that can't do this (EINVAL, ENOSYS, ESPIPE) still has fsync.
  if (result != 0 && (errno == EIO || errno == ENOSPC || errno == EDQUOT))
    throw io_error(file.path(), "cannot write back", errno);
}

}  // namespace ckpt::io
