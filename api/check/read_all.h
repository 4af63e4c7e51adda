// SPDX-License-Identifier: Apache-2.0
// One pass over all bytes of a checkpoint.
#pragma once

#include <cstdint>
#include <vector>

#include "api/engine.h"
#include "reshard/engine.h"
#include "reshard/numbers/stats.h"
#include "reshard/run/run_options.h"

namespace ckpt::library {

// What one pass over all bytes of a checkpoint finds out besides digests.
struct ReadWhat {
  bool replicas = false;  // compare copies that should be equal
  bool stats = false;     // of types that have values
  bool crcs = false;      // stored checksums, as the bytes pass
  uint64_t beside = 0;    // bytes of another catalog that is held too
  reshard::Passed passed = {};
};

struct Reading {
  std::vector<Digest> digests;        // of each tensor, in order
  std::vector<reshard::Stats> stats;  // likewise, if asked
  std::vector<Problem> problems;      // checksums, replicas that differ
  uint64_t bytes = 0;                 // that were read
  uint64_t header_bytes = 0;          // and before them: headers, indexes
};

Reading read_all(Catalog& catalog, const Engine& engine,
                 const ReadWhat& what = {});

}  // namespace ckpt::library
