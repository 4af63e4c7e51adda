// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>

#include <cstdint>

#include "lib/io/file.h"

namespace ckpt::io {

// Frees the blocks of a range, which then reads as zeros, where the file system
// can; else does nothing.
inline void punch(const Handle& file, uint64_t offset, uint64_t count) {
  ::fallocate(file.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(offset), static_cast<off_t>(count));
}

}  // namespace ckpt::io
