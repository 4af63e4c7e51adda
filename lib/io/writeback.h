// SPDX-License-Identifier: Apache-2.0
// Waits for the dirty pages of a range, without the file's metadata.
#pragma once

#include <cstdint>

#include "lib/io/file.h"

namespace ckpt::io {

// Returns when the dirty pages of [offset, offset + count) are written. Makes
// nothing durable: no journal commit, no device flush. Throws kIo if a page
// could not be written. The kernel reports each such error to one caller only,
// so a later sync would not see it.
void wait_writeback(const Handle& file, uint64_t offset, uint64_t count);

// Notes that closing a written file failed: this is how network file systems
// report that data is lost. From any thread.
void note_lost_write(int errnum);
// Throws kIo if one was noted since the last call.
void throw_lost_writes();

}  // namespace ckpt::io
