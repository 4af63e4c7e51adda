// SPDX-License-Identifier: Apache-2.0
// Runs a plan by all ranks of a job, with the same bytes, sums and errors as
// reshard::run.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/layout.h"
#include "reshard/engine.h"
#include "reshard/run/crc_check.h"

namespace ckpt::ranks {

// Where ranks other than 0 write.
struct Site {
  const Target* target = nullptr;  // null: the plan only reads
  std::string root;     // of its files, which already have their size
  std::string journal;  // rank N's is at journal + ".N"
  uint64_t work = 0;    // the journals' fingerprint
  bool sync = false;
};

// reshard::run if this process works alone. Otherwise the same by all ranks:
// options.journal is for rank 0's items, and items in it are skipped.
reshard::RunResult run(const reshard::Plan& plan, const Catalog& source,
                       reshard::Output& output,
                       const reshard::RunOptions& options,
                       const Site& site = {});

// The sum of all ranks' reports; CRCs go to `output`.
reshard::RunResult add_up(const reshard::Plan& plan, const Catalog& source,
                          reshard::Output& output,
                          const reshard::RunOptions& options,
                          const std::vector<std::string>& reports);

// reshard::check_crcs for a whole catalog, likewise.
std::vector<Problem> check_crcs(const Catalog& catalog,
                                const reshard::RunOptions& options);

// Moves what other ranks of an earlier run finished into rank 0's journal, and
// removes their journals. `path` is rank 0's, which must not be open yet.
void collect_journals(const std::string& path, uint64_t work);
// True if another rank's journal has an item.
bool has_journals(const std::string& path);
// Removes the journals of other ranks: the work is done.
void remove_journals(const std::string& path);

}  // namespace ckpt::ranks
