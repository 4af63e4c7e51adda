// SPDX-License-Identifier: Apache-2.0
#include "reshard/run/caching.h"

#include <algorithm>

#include "ckpt/error.h"
#include "lib/io/read_queue.h"
#include "reshard/run/behind.h"

namespace ckpt::reshard {

bool drops_behind(uint64_t bytes_read, uint64_t bytes_written,
                  const RunOptions& options) {
  const uint64_t most =
      options.drop_above ? options.drop_above : memory_bytes() / 2;
  return bytes_read > most || bytes_written > most - bytes_read;
}

uint64_t fit_block(const RunOptions& options, uint64_t blocks, uint64_t most,
                   uint32_t& threads) {
  constexpr uint64_t kLeastBlock = 64 << 10;
  const uint64_t room = options.max_mem;
  const uint64_t least = blocks * kLeastBlock;
  if (room < least)
    throw resource_error({},
                         "--max-mem of {} bytes is too small: the engine "
                         "needs at least {}",
                         room, least)
        .with_hint("use --max-mem 32MiB or more");
  threads = static_cast<uint32_t>(std::min<uint64_t>(threads, room / least));
  const uint64_t block = std::min(room / blocks / threads, most);
  return std::max(kLeastBlock, block / 4096 * 4096);
}

// Unless requested, direct reads are only for what is not in the page cache and
// must not stay there, and only with many reads in flight: one by one they are
// slower than the kernel's own read-ahead. Small runs are not worth a ring.
DirectReads direct_reads(bool drops, uint64_t bytes,
                         const RunOptions& options) {
  constexpr uint32_t kAhead = 8;
  constexpr uint64_t kLeastBytes = 64 << 20;
  const bool passes = drops || (options.reads_once && bytes >= kLeastBytes);
  // A device's blocks are longer than those asked for.
  const uint32_t ahead = options.device ? 0 : kAhead;
  switch (options.io) {
    case ReadMode::kBuffered:
      return {};
    case ReadMode::kDirect:
      return {.on = true};
    case ReadMode::kUring:
      return {.on = true, .ahead = ahead};
    case ReadMode::kAuto:
      return {.on = ahead && passes && io::ReadQueue::has_ring(),
              .wanted_only = true,
              .ahead = ahead};
  }
  return {};
}

}  // namespace ckpt::reshard
