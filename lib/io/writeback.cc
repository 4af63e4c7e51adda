// SPDX-License-Identifier: Apache-2.0
#include "lib/io/writeback.h"

#include <fcntl.h>

#include <cerrno>
#include <utility>

namespace ckpt::io {
Error flush_error(const std::string& path, std::string operation, int errnum) {
  if (const auto& session = Session::current()) session->flush_failed = true;
  return io_error(path, std::move(operation), errnum);
}

void note_lost_write(const std::shared_ptr<Session>& session, int errnum) {
  if (!session) return;
  session->lost_write = errnum;
  session->flush_failed = true;
}

void throw_lost_writes() {
  const auto& session = Session::current();
  if (const int why = session ? session->lost_write.exchange(0) : 0)
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
    throw flush_error(file.path(), "cannot write back", errno);
}

}  // namespace ckpt::io
