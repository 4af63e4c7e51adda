// Reads that nobody waits for yet: a disk or a server that is asked for many
// things at once is faster than one that is asked for one after the other.
#pragma once

#include <cstdint>

#include "lib/io/file.h"

namespace ckpt::io {

// Has the kernel fetch [offset, offset + count) of the file if it begins with
// what is not in the page cache; doesn't wait, and fails in silence.
void ask_for(const Handle& file, uint64_t offset, uint64_t count);

}  // namespace ckpt::io
