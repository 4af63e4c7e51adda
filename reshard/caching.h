// SPDX-License-Identifier: Apache-2.0
// What a run leaves in the page cache, and what it reads around it.
#pragma once

#include <cstdint>

#include "reshard/direct.h"
#include "reshard/engine.h"

namespace ckpt::reshard {

// True if the run moves too much to leave it in the page cache.
bool drops_behind(uint64_t bytes_read, uint64_t bytes_written,
                  const RunOptions& options);

// Bytes of a block if each thread has `blocks` of them: `most`, or what
// options.max_mem has room for. Threads give way before blocks become so small
// that system calls dominate. Throws a resource_error if one thread is too
// many.
uint64_t fit_block(const RunOptions& options, uint64_t blocks, uint64_t most,
                   uint32_t& threads);

// `drops`: as above; `bytes`: to be read.
DirectReads direct_reads(bool drops, uint64_t bytes, const RunOptions& options);

}  // namespace ckpt::reshard
