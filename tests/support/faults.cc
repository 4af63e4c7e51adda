// SPDX-License-Identifier: Apache-2.0
// A failing disk, loaded before the C library (LD_PRELOAD). It intercepts every
// call that the program makes on files under one directory:
//
//   FAULTS_ROOT   the directory; all else passes
//   FAULTS        CALL@N=WHAT, comma-separated: what befalls the N-th CALL and
//                 none after it; N+ for those after it too. WHAT is a number
//                 (errno), `short` (half of a transfer, interrupted), `delay`
//                 (200 ms), `lost` (a sync that fails with EIO; what was
//                 written to the file since its last one becomes zeros, as
//                 when the kernel lets go of pages that it can't write),
//                 `stop` (SIGSTOP to the process), `kill`, `copy` (of a clone:
//                 it succeeds, as where the file system can share blocks)
//   FAULTS_COUNT  a file that gets "CALL N" lines at the end: calls that were
//   FAULTS_RECORD a file that gets every change, for replaying power cuts:
//                 u32 kind, u32 path bytes, u32 other bytes, u64 offset,
//                 u64 size, path, other path, data
//
// It is part of the tests, not of the program: nothing in the program asks
// whether a test is running, and the calls tested are those that users run.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/faults_state.h"

using namespace faults;

namespace {

// ------------------------------------------------------------------ recording
enum Kind : uint32_t {
  kCreated = 1,
  kWritten,
  kResized,
  kSynced,
  kRenamed,
  kUnlinked,
  kMade,
  kExchanged,
  kLinked
};

void record(Kind kind, const std::string& path, const std::string& other = "",
            uint64_t offset = 0, const void* data = nullptr,
            uint64_t size = 0) {
  if (state().record < 0 || !is_ours(path)) return;
  std::string text;
  const auto put = [&](auto number) {
    text.append(reinterpret_cast<const char*>(&number), sizeof number);
  };
  put(static_cast<uint32_t>(kind));
  put(static_cast<uint32_t>(path.size()));
  put(static_cast<uint32_t>(other.size()));
  put(offset);
  put(size);
  text += path + other;
  if (data) text.append(static_cast<const char*>(data), size);
  const std::lock_guard lock(state().mutex);
  REAL(write);
  if (real_write(state().record, text.data(), text.size()) !=
      static_cast<ssize_t>(text.size()))
    abort();
}

// Past the faults.
int facts_of(int fd, struct stat* facts) {
  REAL(fstatat);
  return real_fstatat(fd, "", facts, AT_EMPTY_PATH);
}

void soil(int fd, off_t offset, size_t size) {
  struct stat facts;
  if (facts_of(fd, &facts) != 0) return;
  const std::lock_guard lock(state().mutex);
  state().dirty[{facts.st_dev, facts.st_ino}].emplace_back(offset, size);
}

void clean(int fd, bool lost) {
  struct stat facts;
  if (facts_of(fd, &facts) != 0) return;
  std::vector<std::pair<off_t, size_t>> ranges;
  {
    const std::lock_guard lock(state().mutex);
    std::swap(ranges, state().dirty[{facts.st_dev, facts.st_ino}]);
  }
  if (!lost) return;
  REAL(open);
  REAL(pwrite);
  // The descriptor may be read-only.
  const int out =
      real_open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_WRONLY);
  for (const auto& [offset, size] : ranges) {
    const std::string zeros(size, '\0');
    if (real_pwrite(out, zeros.data(), size, offset) < 0) abort();
  }
  close(out);
}

int sync_with(Call call, int fd, int (*sync)(int)) {
  const std::string path = path_of(fd);
  const std::string what = fate(call, path);
  if (what == "lost") {
    clean(fd, true);
    errno = EIO;
    return -1;
  }
  if (fails(what)) return -1;
  if (is_ours(path)) clean(fd, false);
  record(kSynced, path);
  return sync(fd);
}

int open_with(int directory, const char* path, int flags, mode_t mode) {
  const std::string whole = absolute(directory, path);
  if (fails(fate(kOpen, whole))) return -1;
  REAL(openat);
  REAL(fstatat);
  struct stat facts;
  const bool makes = (flags & O_CREAT) != 0 && is_ours(whole) &&
                     real_fstatat(directory, path, &facts, 0) != 0;
  const int fd = real_openat(directory, path, flags, mode);
  if (fd >= 0 && makes) record(kCreated, whole);
  if (fd >= 0 && (flags & O_TRUNC) != 0) record(kResized, whole);
  return fd;
}

// Half of the transfer for `short`.
size_t length(const std::string& what, size_t size) {
  return what == "short" && size > 1 ? size / 2 : size;
}

ssize_t write_with(int fd, const void* data, size_t size, off_t offset) {
  const std::string path = path_of(fd);
  const std::string what = fate(kWrite, path);
  if (fails(what)) return -1;
  REAL(pwrite);
  const ssize_t n = real_pwrite(fd, data, length(what, size), offset);
  if (n > 0 && is_ours(path)) {
    soil(fd, offset, static_cast<size_t>(n));
    record(kWritten, path, "", static_cast<uint64_t>(offset), data,
           static_cast<uint64_t>(n));
  }
  return n;
}

ssize_t writev_with(int fd, const iovec* parts, int count, off_t offset) {
  std::string all;
  for (int i = 0; i < count; ++i)
    all.append(static_cast<const char*>(parts[i].iov_base), parts[i].iov_len);
  return write_with(fd, all.data(), all.size(), offset);
}

ssize_t read_with(int fd, void* data, size_t size, off_t offset) {
  const std::string what = fate(kRead, path_of(fd));
  if (fails(what)) return -1;
  REAL(pread);
  return real_pread(fd, data, length(what, size), offset);
}

int truncate_with(int fd, off_t size) {
  const std::string path = path_of(fd);
  if (fails(fate(kTruncate, path))) return -1;
  REAL(ftruncate);
  const int result = real_ftruncate(fd, size);
  if (result == 0) record(kResized, path, "", static_cast<uint64_t>(size));
  return result;
}

int rename_with(int from_directory, const char* from, int to_directory,
                const char* to, unsigned flags) {
  const std::string whole = absolute(from_directory, from);
  const std::string other = absolute(to_directory, to);
  if (fails(fate(kRename, whole))) return -1;
  REAL(renameat2);
  const int result =
      real_renameat2(from_directory, from, to_directory, to, flags);
  if (result == 0)
    record((flags & 2U) != 0 ? kExchanged : kRenamed, whole, other);
  return result;
}

int unlink_with(int directory, const char* path, int flags) {
  const std::string whole = absolute(directory, path);
  if (fails(fate((flags & AT_REMOVEDIR) != 0 ? kRmdir : kUnlink, whole)))
    return -1;
  REAL(unlinkat);
  const int result = real_unlinkat(directory, path, flags);
  if (result == 0) record(kUnlinked, whole);
  return result;
}

int mkdir_with(int directory, const char* path, mode_t mode) {
  const std::string whole = absolute(directory, path);
  if (fails(fate(kMkdir, whole))) return -1;
  REAL(mkdirat);
  const int result = real_mkdirat(directory, path, mode);
  if (result == 0) record(kMade, whole);
  return result;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return open_with(AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return open_with(AT_FDCWD, path, flags, mode);
}
int openat(int directory, const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return open_with(directory, path, flags, mode);
}
int openat64(int directory, const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return open_with(directory, path, flags, mode);
}

ssize_t pread(int fd, void* data, size_t size, off_t offset) {
  return read_with(fd, data, size, offset);
}
ssize_t pread64(int fd, void* data, size_t size, off64_t offset) {
  return read_with(fd, data, size, offset);
}
ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  return write_with(fd, data, size, offset);
}
ssize_t pwrite64(int fd, const void* data, size_t size, off64_t offset) {
  return write_with(fd, data, size, offset);
}
ssize_t pwritev(int fd, const iovec* parts, int count, off_t offset) {
  return writev_with(fd, parts, count, offset);
}
ssize_t pwritev64(int fd, const iovec* parts, int count, off64_t offset) {
  return writev_with(fd, parts, count, offset);
}
int ftruncate(int fd, off_t size) noexcept { return truncate_with(fd, size); }
int ftruncate64(int fd, off64_t size) noexcept {
  return truncate_with(fd, size);
}

int fsync(int fd) {
  REAL(fsync);
  return sync_with(kFsync, fd, real_fsync);
}
int fdatasync(int fd) {
  REAL(fdatasync);
  return sync_with(kFdatasync, fd, real_fdatasync);
}
int sync_file_range(int fd, off64_t offset, off64_t size, unsigned flags) {
  const std::string what = fate(kSyncRange, path_of(fd));
  if (what == "lost") {
    clean(fd, true);
    errno = EIO;
    return -1;
  }
  if (fails(what)) return -1;
  REAL(sync_file_range);
  return real_sync_file_range(fd, offset, size, flags);
}

int close(int fd) {
  const std::string what = fate(kClose, path_of(fd));
  REAL(close);
  const int result = real_close(fd);
  return fails(what) ? -1 : result;
}

int rename(const char* from, const char* to) noexcept {
  return rename_with(AT_FDCWD, from, AT_FDCWD, to, 0);
}
int renameat(int from_directory, const char* from, int to_directory,
             const char* to) noexcept {
  return rename_with(from_directory, from, to_directory, to, 0);
}
int renameat2(int from_directory, const char* from, int to_directory,
              const char* to, unsigned flags) noexcept {
  return rename_with(from_directory, from, to_directory, to, flags);
}
int link(const char* from, const char* to) noexcept {
  const std::string whole = absolute(AT_FDCWD, from);
  if (fails(fate(kLink, whole))) return -1;
  REAL(link);
  const int result = real_link(from, to);
  if (result == 0) record(kLinked, whole, absolute(AT_FDCWD, to));
  return result;
}
int unlink(const char* path) noexcept { return unlink_with(AT_FDCWD, path, 0); }
int rmdir(const char* path) noexcept {
  return unlink_with(AT_FDCWD, path, AT_REMOVEDIR);
}
int remove(const char* path) noexcept {
  struct stat facts;
  REAL(fstatat);
  const bool directory =
      real_fstatat(AT_FDCWD, path, &facts, AT_SYMLINK_NOFOLLOW) == 0 &&
      S_ISDIR(facts.st_mode);
  return unlink_with(AT_FDCWD, path, directory ? AT_REMOVEDIR : 0);
}
int unlinkat(int directory, const char* path, int flags) noexcept {
  return unlink_with(directory, path, flags);
}
int mkdir(const char* path, mode_t mode) noexcept {
  return mkdir_with(AT_FDCWD, path, mode);
}

DIR* opendir(const char* path) {
  if (fails(fate(kOpendir, absolute(AT_FDCWD, path)))) return nullptr;
  REAL(opendir);
  return real_opendir(path);
}
struct dirent* readdir(DIR* directory) {
  if (fails(fate(kReaddir, path_of(dirfd(directory))))) return nullptr;
  REAL(readdir);
  return real_readdir(directory);
}

int stat(const char* path, struct stat* facts) noexcept {
  if (fails(fate(kStat, absolute(AT_FDCWD, path)))) return -1;
  REAL(fstatat);
  return real_fstatat(AT_FDCWD, path, facts, 0);
}
int lstat(const char* path, struct stat* facts) noexcept {
  if (fails(fate(kStat, absolute(AT_FDCWD, path)))) return -1;
  REAL(fstatat);
  return real_fstatat(AT_FDCWD, path, facts, AT_SYMLINK_NOFOLLOW);
}
int fstat(int fd, struct stat* facts) noexcept {
  if (fails(fate(kStat, path_of(fd)))) return -1;
  return facts_of(fd, facts);
}
int fstatat(int directory, const char* path, struct stat* facts,
            int flags) noexcept {
  if (fails(fate(kStat, absolute(directory, path)))) return -1;
  REAL(fstatat);
  return real_fstatat(directory, path, facts, flags);
}
ssize_t copy_file_range(int from, off64_t* from_offset, int to,
                        off64_t* to_offset, size_t size, unsigned flags) {
  const std::string path = path_of(to);
  const std::string what = fate(kCopyRange, path);
  if (fails(what)) return -1;
  // Refused while recording, so that the caller falls back to writes.
  if (state().record >= 0 && is_ours(path)) {
    errno = EXDEV;
    return -1;
  }
  REAL(copy_file_range);
  const off64_t at = to_offset ? *to_offset : 0;
  const ssize_t n = real_copy_file_range(from, from_offset, to, to_offset,
                                         length(what, size), flags);
  if (n > 0 && is_ours(path)) soil(to, at, static_cast<size_t>(n));
  return n;
}

// What reads as shared blocks do.
static int copied(int to, const void* argument) {
  struct {
    int64_t from;
    uint64_t at, size, target;
  } range;
  memcpy(&range, argument, sizeof range);
  REAL(copy_file_range);
  auto in = static_cast<off64_t>(range.at);
  auto out = static_cast<off64_t>(range.target);
  for (uint64_t left = range.size; left > 0;) {
    const ssize_t n = real_copy_file_range(static_cast<int>(range.from), &in,
                                           to, &out, left, 0);
    if (n <= 0) return -1;
    left -= static_cast<uint64_t>(n);
  }
  return 0;
}

int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list rest;
  va_start(rest, request);
  void* const argument = va_arg(rest, void*);
  va_end(rest);
  if (request == 0x4020940D) {  // FICLONERANGE
    const std::string what = fate(kClone, path_of(fd));
    if (what == "copy") return copied(fd, argument);
    if (fails(what)) return -1;
    // The recorder doesn't see shared blocks.
    if (state().record >= 0) {
      errno = EOPNOTSUPP;
      return -1;
    }
  }
  static auto* const real_ioctl = real<int(int, unsigned long, void*)>("ioctl");
  return real_ioctl(fd, request, argument);
}

}  // extern "C"
