// SPDX-License-Identifier: Apache-2.0
// Waits for the dirty pages of a range, without the file's metadata.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/session.h"

namespace ckpt::io {

// Returns when the dirty pages of [offset, offset + count) are written. Makes
// nothing durable: no journal commit, no device flush. Throws kIo if a page
// could not be written. The kernel reports each such error to one caller only,
// so a later sync would not see it.
void wait_writeback(const Handle& file, uint64_t offset, uint64_t count);

// The error of a flush that failed, which the thread's session remembers. The
// kernel takes what it could not write for clean from then on, also what says
// where a file's blocks are: no later flush of that inode writes it or fails.
Error flush_error(const std::string& path, std::string operation, int errnum);

// Notes that closing a written file failed: this is how network file systems
// report that data is lost. From any thread.
void note_lost_write(const std::shared_ptr<Session>& session, int errnum);
// Throws kIo if one was noted in this thread's session since the last call.
void throw_lost_writes();

}  // namespace ckpt::io
