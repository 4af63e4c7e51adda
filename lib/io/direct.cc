// SPDX-License-Identifier: Apache-2.0
#include "lib/io/direct.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/stat.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/io/mount.h"
#include "lib/io/remote.h"

namespace ckpt::io {
namespace {

// What the kernel reports (Linux 6.1 and later), else what every disk accepts;
// 0 if there are no direct reads. Uses the raw system call, since not all C
// libraries' headers know these fields.
uint64_t alignment_of(int fd) {
#if defined(STATX_DIOALIGN) && defined(SYS_statx)
  struct ::statx facts = {};
  if (::syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &facts) ==
          0 &&
      (facts.stx_mask & STATX_DIOALIGN) != 0) {
    const uint64_t align =
        std::max(facts.stx_dio_mem_align, facts.stx_dio_offset_align);
    return align <= DirectFile::kMostAlign && std::has_single_bit(align) ? align
                                                                         : 0;
  }
#else
  static_cast<void>(fd);
#endif
  return DirectFile::kMostAlign;
}

}  // namespace

std::shared_ptr<const DirectFile> DirectFile::open(const std::string& path) {
  Handle::open_read(path);  // says what is wrong with it
  // An archive member can begin anywhere in a file.
  if (is_url(path) || find_mounted(path)) return nullptr;
  int fd = -1;
  do {
    fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) {
    if (errno == EINVAL || errno == EOPNOTSUPP) return nullptr;
    throw io_error(path, "cannot open", errno);
  }
  const uint64_t align = alignment_of(fd);
  if (align == 0) {
    ::close(fd);
    return nullptr;
  }
  return std::shared_ptr<const DirectFile>(new DirectFile(path, fd, align));
}

DirectFile::~DirectFile() { ::close(fd_); }

uint64_t DirectFile::read(uint64_t offset, std::span<std::byte> buffer) const {
  uint64_t done = 0;
  while (done < buffer.size()) {
    const ssize_t n = ::pread(fd_, buffer.data() + done, buffer.size() - done,
                              static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      throw io_error(path_, fmt::format("cannot read byte {}", offset + done),
                     errno);
    if (n == 0) break;
    done += static_cast<uint64_t>(n);
    if (done % align_ != 0) break;  // only the end of a file is unaligned
  }
  return done;
}

}  // namespace ckpt::io
