// What a run leaves in the page cache, and what it reads around it.
#pragma once

#include <cstdint>

#include "reshard/direct.h"
#include "reshard/engine.h"

namespace ckpt::reshard {

// True if the run moves so much that none of it is to stay in the page cache.
bool drops_behind(uint64_t bytes_read, uint64_t bytes_written,
                  const RunOptions& options);

// `drops`: as above.
DirectReads direct_reads(bool drops, const RunOptions& options);

}  // namespace ckpt::reshard
