// SPDX-License-Identifier: Apache-2.0
// Uploads a target on another machine while it is written: each part is sent
// once it is complete, and its bytes are freed here once it has arrived.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "api/write/prepared.h"
#include "lib/io/staging.h"
#include "reshard/run/journal.h"
#include "reshard/run/output.h"
#include "reshard/run/parts.h"
#include "reshard/run/run_options.h"

namespace ckpt::library {

class Sending {
 public:
  // Null for a target on this machine. All files except the manifest must
  // exist.
  static std::unique_ptr<Sending> begin(const Prepared& prepared,
                                        io::Staging& staging);

  // What an earlier run finished, by where its bytes are now.
  struct Earlier {
    std::vector<reshard::Outcome> sent;  // the server has all of them
    std::vector<reshard::Outcome> here;  // on this machine, it is said
    size_t gone = 0;  // freed here, in part, and not all there
  };
  Earlier sort(const std::vector<reshard::Outcome>& done) const;

  // Call when literals and carried ranges are in the files. The engine reports
  // the items of this run and those of an earlier one that it believes. A job
  // of several processes sends at the end.
  void follow(reshard::Output& output, reshard::RunOptions& run);

 private:
  Sending(const Prepared& prepared, io::Upload& upload, size_t files);
  io::Upload& upload_;
  reshard::TargetParts parts_;
};

// About the most bytes that the spool of a target on another machine takes.
uint64_t spool_bytes(const Prepared& prepared);

}  // namespace ckpt::library
