// SPDX-License-Identifier: Apache-2.0
// Waiting for dirty pages of a range, without the file's metadata.
#pragma once

#include <cstdint>

#include "lib/io/file.h"

namespace ckpt::io {

// Returns when the pages of [offset, offset + count) that were dirty are
// written. Makes nothing durable: no journal commit, no flush of the device.
// Throws kIo if a page could not be written: the kernel tells each such error
// to one caller only, so that a sync afterwards would not see it any more.
void wait_writeback(const Handle& file, uint64_t offset, uint64_t count);

// A file that was written to could not be closed: network file systems say then
// that what they were given is lost. From any thread.
void note_lost_write(int errnum);
// Throws kIo if one was noted since the last call.
void throw_lost_writes();

}  // namespace ckpt::io
