// SPDX-License-Identifier: Apache-2.0
#include "lib/io/lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/io/retry.h"

namespace ckpt::io {
namespace {

Error no_lock(const std::string& target, int why) {
  const Error error(ExitCode::kIo, {parent(target), {}},
                    "cannot write in the directory of the target: " +
                        std::generic_category().message(why));
  if (why != EACCES && why != EPERM && why != EROFS) return error;
  return error.with_hint(
      "a checkpoint is written beside its target first: choose a target in a "
      "directory that you may write to");
}

bool is_named(int fd, const std::string& path) {
  struct stat open, named;
  return ::fstat(fd, &open) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

}  // namespace

bool try_lock(int fd, int operation, const std::string& path) {
  if (retry([&] { return ::flock(fd, operation | LOCK_NB); }) == 0) return true;
  if (errno == EWOULDBLOCK) return false;
  throw io_error(path, "cannot lock", errno)
      .with_hint(
          "two runs could write one target there: choose a target on a file "
          "system with locks (Lustre has them when mounted with -o flock)");
}

TargetLock::TargetLock(const std::string& target)
    : path_(join(parent(target), "." + base_name(target) + ".ckpt-lock")) {
  for (;;) {
    fd_ = retry([&] {
      return ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW,
                    0666);
    });
    if (fd_ < 0 && errno == ELOOP)
      throw unsafe_error({path_, {}}, "is a symbolic link, not a lock")
          .with_hint("remove it, or choose another target");
    if (fd_ < 0) throw no_lock(target, errno);
    if (!try_lock(fd_, LOCK_EX, path_)) {
      ::close(fd_);
      throw Error(ExitCode::kIo, {target, {}},
                  "another process is writing the same target",
                  "wait for it, or choose another target");
    }
    if (is_named(fd_, path_)) {
      struct stat facts;
      if (::fstat(fd_, &facts) == 0 && facts.st_size == 0) return;
      ::close(fd_);
      fd_ = -1;
      throw unsafe_error({path_, {}}, "is a file with content, not a lock")
          .with_hint("move it away, or choose another target");
    }
    ::close(fd_);  // its holder has just removed it
  }
}

TargetLock::~TargetLock() {
  if (fd_ < 0) return;
  ::unlink(path_.c_str());
  ::close(fd_);
}

}  // namespace ckpt::io
