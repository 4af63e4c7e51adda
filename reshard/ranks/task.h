// SPDX-License-Identifier: Apache-2.0
// A task: what a rank is told to do, as bytes, and its result, as bytes. Rank 0
// does its own part with the same functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/hash/digest.h"
#include "reshard/ranks/control.h"
#include "reshard/ranks/share.h"
#include "reshard/run/crc_check.h"
#include "reshard/run/journal.h"
#include "reshard/sources/source_crcs.h"

namespace ckpt::ranks {

// What one rank found and did.
struct Sum {
  uint32_t index = 0;
  Digest part;
};
struct LossSum {
  uint32_t tensor = 0;
  reshard::CastLoss part;
};
struct Report {
  std::vector<Sum> source;  // by slot; zeros are left out
  std::vector<Sum> target;  // by cast tensor
  std::vector<LossSum> losses;
  std::vector<reshard::CrcPart> crcs;
  std::vector<reshard::SourceCrcs::Seen> seen;
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;  // into files, including those for others
  uint64_t bytes_sent = 0;     // payload of messages
  uint64_t bytes_received = 0;
  uint64_t messages = 0;  // with payload, sent
  uint64_t rounds = 0;    // between GPUs
  uint64_t items = 0;     // whole ones, in a journal
  double seconds = 0;
};

std::string run_task(const Share& share);
std::string check_task(const Catalog& catalog,
                       const std::vector<uint32_t>& which,
                       const reshard::RunOptions& options);

// Its result is the rank's CudaModule::meeting_name.
std::string gpu_task();

// Performs a task. `journal`: where items go if the task names no file for
// them; may be null. Throws Stopped and whatever the engine throws.
std::string perform(std::string_view task, Control& control,
                    reshard::Journal* journal);

// The same for a share that needs no unpacking, or was changed after it.
// Returns the report.
std::string perform_share(const Share& share, Control& control);

Report unpack_report(std::string_view bytes);
std::vector<std::pair<uint32_t, Problem>> unpack_problems(
    std::string_view bytes);

}  // namespace ckpt::ranks
