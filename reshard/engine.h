// SPDX-License-Identifier: Apache-2.0
// Runs a plan: sweeps the sources front to back in blocks that fit a core's
// cache, and does all work on a byte (digest, CRC, cast) while it is hot.
// Memory is bounded, whatever the model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"
#include "ckpt/read_mode.h"
#include "lib/digest.h"
#include "lib/progress.h"
#include "reshard/journal.h"
#include "reshard/output.h"
#include "reshard/plan.h"
#include "reshard/work.h"

namespace ckpt::reshard {

// Converts `count` elements exactly as PyTorch's .to() rounds.
using CastFunction = std::function<void(
    DType from, DType to, const std::byte* in, std::byte* out, uint64_t count)>;

// Called with each run of a tensor's logical source bytes: the tensor's index,
// the offset in its content, the bytes. Called from many threads; each element
// is seen exactly once.
using Observer = std::function<void(uint32_t tensor, uint64_t offset,
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
  const CudaModule* device = nullptr;  // null: the processor does it all
  // A run that moves more bytes than this leaves nothing in the page
  // cache (reshard/behind.h); 0: half of the machine's memory.
  uint64_t drop_above = 0;
  Progress progress;
  Journal* journal = nullptr;  // finished items go in; what it has is skipped
  // Called from any thread with the number of each item whose bytes are in
  // place, by an earlier run or by this one; not with `part`.
  std::function<void(uint32_t item)> finished;
  const Part* part = nullptr;  // only this, and no journal
};

struct RunResult {
  std::vector<Digest> source;  // by slot: of the elements as they were read
  std::vector<Digest> target;  // by tensor: of the elements as written
  std::map<uint32_t, CastLoss> losses;  // by tensor that lost some
  std::vector<uint32_t> wrong_crcs;     // in Catalog::crcs, if checked
  uint64_t bytes_read = 0;              // of payload, counted at the reads
  uint64_t bytes_written = 0;
};

// Bytes of all buffers of such a run.
uint64_t buffer_bytes(const Plan& plan, const RunOptions& options);

// Throws resource_error if max_mem is too small, the errors of reads and
// writes, and Interrupted after a signal.
RunResult run(const Plan& plan, const Catalog& source, Output& output,
              const RunOptions& options);

// Indexes into source.crcs of records whose checksum is wrong. Records that
// passed by were checked on the way; the others that the plan uses are read
// once more.
std::vector<uint32_t> wrong_crcs(const SourceCrcs& crcs, const Plan& plan,
                                 const Catalog& source, RunOptions options);

// Throws input_error naming the first record whose stored checksum is wrong.
void check_crcs(const RunResult& result, const Plan& plan,
                const Catalog& source);

// Throws input_error naming the tensor and both files of the first replicas
// that differ.
void check_replicas(const Plan& plan, const RunResult& result,
                    const Catalog& source);

}  // namespace ckpt::reshard
