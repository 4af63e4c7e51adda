// SPDX-License-Identifier: Apache-2.0
// One writer for each target. The lock is a file beside the target that
// outlives the rename which publishes it:
//
//   DIR/.NAME.ckpt-lock       held while NAME is written, published and what
//                             it replaces is removed; empty
//
// Its holder unlinks it at the end, so after locking a file, check again that
// it is still the one of that name.
#pragma once

#include <string>

namespace ckpt::io {

class TargetLock {
 public:
  // Throws kIo if another process holds it, or if the file system has no locks.
  explicit TargetLock(const std::string& target);
  ~TargetLock();
  TargetLock(const TargetLock&) = delete;
  TargetLock& operator=(const TargetLock&) = delete;

 private:
  std::string path_;
  int fd_ = -1;
};

// Locks an open file without waiting. Returns false if another process holds
// it; throws kIo if it can't be locked at all.
bool try_lock(int fd, int operation, const std::string& path);

}  // namespace ckpt::io
