// SPDX-License-Identifier: Apache-2.0
// Reads that nobody waits for yet: a disk or a server answers many requests at
// once faster than one after the other.
#pragma once

#include <cstdint>
#include <span>

#include "lib/io/file.h"
#include "lib/io/remote.h"

namespace ckpt::io {

// True if more than half of [offset, offset + count) is in the page cache;
// false also where that is unknown. Reads nothing.
bool is_cached(const Handle& file, uint64_t offset, uint64_t count);

// Has the kernel fetch [offset, offset + count) of the file. Doesn't wait, and
// fails silently.
void ask_for(const Handle& file, uint64_t offset, uint64_t count);
// The same of several ranges, in order.
void ask_for(const Handle& file, std::span<const Range> ranges, Asking how);

}  // namespace ckpt::io
