// SPDX-License-Identifier: Apache-2.0
// What an earlier run wrote, before its journal is believed. Files may have
// been cut, flipped, deleted or filled with zeros since: by hands, by a disk,
// by a kernel that could not write their pages and let go of them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ckpt/layout.h"
#include "reshard/engine.h"
#include "reshard/plan/plan.h"
#include "reshard/run/journal.h"

namespace ckpt::reshard {

struct StagedProof {
  std::vector<Outcome> good;  // the files hold what these items wrote
  size_t wrong = 0;           // items whose bytes are not what was written
  size_t unknown = 0;         // items of which the journal has no digest
  bool lost = false;          // a flush failed: nothing was read
};

// Reads the target's files below `root` from the disk, not from the page
// cache, and compares the digests of each item of `done` with what it gave
// when it was written. In parallel, within options.max_mem. `flush`: the files
// are flushed before; else what is dirty is read as it is. Throws
// resource_error if max_mem is too small, Interrupted after a signal.
StagedProof prove_staged(const Plan& plan, const Target& target,
                         const std::string& root,
                         const std::vector<Outcome>& done,
                         const RunOptions& options, bool flush);

}  // namespace ckpt::reshard
