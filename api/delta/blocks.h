// SPDX-License-Identifier: Apache-2.0
// Working on blocks of a lossless delta, some at once. Private to this room.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "api/delta/index.h"
#include "api/delta/lossless.h"
#include "lib/interrupt.h"
#include "lib/parallel.h"
#include "lib/processors.h"
#include "reshard/run/run_options.h"

namespace ckpt::library {

using Bytes = std::vector<std::byte>;

// How many blocks are worked on at once.
inline size_t blocks_at_once(const LosslessOptions& options) {
  // A block, what it is XORed with, its planes and its frame.
  constexpr uint64_t kBlockMemory = 5 * kBlockBytes;
  const uint64_t threads =
      options.threads != 0 ? options.threads : processors();
  return std::clamp<uint64_t>(options.max_mem / (2 * kBlockMemory), 1, threads);
}

inline reshard::RunOptions one_thread() {
  reshard::RunOptions run;
  run.threads = 1;
  run.max_mem = kBlockBytes;
  run.digest = false;
  return run;
}

inline void xor_with(std::span<std::byte> bytes,
                     std::span<const std::byte> other) {
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] ^= other[i];
}

// Calls make(i) for some blocks at once, then take(i) for each in order.
template <class Make, class Take>
void in_batches(size_t count, size_t at_once, Make make, Take take) {
  for (size_t first = 0; first < count; first += at_once) {
    if (interrupted()) throw Interrupted("stopped; nothing was written");
    const size_t some = std::min(at_once, count - first);
    parallel_for(some, [&](size_t i) { make(first + i, i); });
    for (size_t i = 0; i < some; ++i) take(first + i, i);
  }
}

}  // namespace ckpt::library
