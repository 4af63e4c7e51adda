// SPDX-License-Identifier: Apache-2.0
// How a plan is run: threads, memory, casts, who is told what.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ckpt/dtype.h"
#include "ckpt/read_mode.h"
#include "lib/progress.h"
#include "reshard/plan/work.h"
#include "reshard/run/journal.h"

namespace ckpt::reshard {

// Converts `count` elements exactly as PyTorch's .to() rounds.
using CastFunction = std::function<void(
    DType from, DType to, const std::byte* in, std::byte* out, uint64_t count)>;

// Called with each run of a tensor's logical source bytes: the tensor's index,
// the offset in its content, the bytes. Called from many threads; each element
// is seen exactly once.
using Observer = std::function<void(uint32_t tensor, uint64_t offset,
                                    std::span<const std::byte> bytes)>;

// Called with bytes [offset, …) of a source's file as the container has them,
// when they are read. Called from many threads, perhaps twice for the same
// bytes; never for what other processes read.
using Passed = std::function<void(uint32_t file, uint64_t offset,
                                  std::span<const std::byte> bytes)>;

class CudaModule;
class SourceCrcs;

// The part of a plan that one of several processes runs (reshard/ranks).
struct Part {
  std::vector<Item> items;
  SourceCrcs* crcs = nullptr;  // filled, not judged: others have the rest
  // Called with each numbered item once its bytes are in place.
  std::function<void(const Outcome&)> finished;
};

struct RunOptions {
  uint32_t threads = 0;                  // 0: all cores
  uint64_t max_mem = uint64_t{1} << 30;  // bound of all buffers together
  uint64_t block = uint64_t{1} << 20;    // aim of one read: half an L2 cache
  ReadMode io = ReadMode::kAuto;
  // The source will hardly be read again: kAuto keeps what is not in the page
  // cache out of it.
  bool reads_once = false;
  bool digest = true;
  bool check_crcs = false;  // of the source's records, as they are read
  CastFunction cast;        // needed if a planned tensor casts
  // Count elements that casts lose (cast_loss.h). Nothing counts them in a
  // device's blocks, so tensors whose cast may lose some go through the
  // processor.
  bool count_losses = false;
  bool saturate = false;  // what overflows becomes the largest number
  Observer observe;       // optional
  Passed passed;          // likewise
  const CudaModule* device = nullptr;  // null: the processor does it all
  // A run that moves more bytes than this leaves nothing in the page
  // cache (reshard/run/behind.h); 0: half of the machine's memory.
  uint64_t drop_above = 0;
  Progress progress;
  Journal* journal = nullptr;  // finished items go in; what it has is skipped
  // Called from any thread with the number of each item whose bytes are in
  // place, by an earlier run or by this one; not with `part`.
  std::function<void(uint32_t item)> finished;
  const Part* part = nullptr;  // only this, and no journal
};

}  // namespace ckpt::reshard
