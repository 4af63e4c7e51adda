// A task: what a rank is told to do, as bytes, and what comes of it, as bytes.
// Rank 0 does its own part by the same functions.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/digest.h"
#include "reshard/crc_check.h"
#include "reshard/journal.h"
#include "reshard/ranks/share.h"
#include "reshard/source_crcs.h"

namespace ckpt::ranks {

// Between the thread that works and the one that talks to the other ranks.
struct Control {
  std::atomic<uint64_t> bytes = 0;    // that were read
  std::atomic<bool> stopped = false;  // someone else failed: give up
};

// Thrown by a task that was stopped: its own work was sound.
struct Stopped {};

// What one rank found and did.
struct Sum {
  uint32_t index = 0;
  Digest part;
};
struct Report {
  std::vector<Sum> source;  // by slot; what is zero is left out
  std::vector<Sum> target;  // by tensor that is cast
  std::vector<reshard::CrcPart> crcs;
  std::vector<reshard::SourceCrcs::Seen> seen;
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
  uint64_t items = 0;  // whole ones, that a journal has
  double seconds = 0;
};

std::string run_task(const Share& share);
std::string check_task(const Catalog& catalog,
                       const std::vector<uint32_t>& which,
                       const reshard::RunOptions& options);

// Does it. `journal`: where items go, if the task names no file for it; may be
// null. Throws Stopped, and whatever the engine throws.
std::string perform(std::string_view task, Control& control,
                    reshard::Journal* journal);

Report unpack_report(std::string_view bytes);
std::vector<std::pair<uint32_t, Problem>> unpack_problems(
    std::string_view bytes);

// A failure as bytes, and as what it was. `by` ("rank 3 of 8, on node7")
// becomes a part of the message; "" for this process.
std::string pack_failure(std::exception_ptr failure);
[[noreturn]] void throw_failure(std::string_view bytes, const std::string& by);
bool is_stopped(std::string_view failure);

}  // namespace ckpt::ranks
