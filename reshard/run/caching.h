// SPDX-License-Identifier: Apache-2.0
// What a run leaves in the page cache, and what it reads past it.
#pragma once

#include <cstdint>

#include "reshard/run/run_options.h"
#include "reshard/sources/direct.h"

namespace ckpt::reshard {

// True if the run moves too much to leave it in the page cache.
bool drops_behind(uint64_t bytes_read, uint64_t bytes_written,
                  const RunOptions& options);

// The size of a block if each thread has `blocks` of them: `most`, or what fits
// options.max_mem. Threads are given up before blocks become so small that
// system calls dominate. Throws resource_error if even one thread does not fit.
uint64_t fit_block(const RunOptions& options, uint64_t blocks, uint64_t most,
                   uint32_t& threads);

// `drops`: as above; `bytes`: to be read.
DirectReads direct_reads(bool drops, uint64_t bytes, const RunOptions& options);

}  // namespace ckpt::reshard
