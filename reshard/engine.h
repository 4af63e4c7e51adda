// SPDX-License-Identifier: Apache-2.0
// Runs a plan: sweeps the sources front to back in blocks that fit a core's
// cache, and does all work on a byte (digest, CRC, cast) while it is hot.
// Memory is bounded, whatever the model.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "ckpt/catalog.h"
#include "lib/hash/digest.h"
#include "reshard/plan/plan.h"
#include "reshard/run/output.h"
#include "reshard/run/run_options.h"

namespace ckpt::reshard {

class SourceCrcs;

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
