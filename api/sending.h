// SPDX-License-Identifier: Apache-2.0
// A target on another machine gets its files while they are written: each part
// goes when it is whole, and its bytes are freed here when it has arrived.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "api/write.h"
#include "lib/io/staging.h"
#include "reshard/journal.h"
#include "reshard/output.h"
#include "reshard/parts.h"

namespace ckpt::library {

class Sending {
 public:
  // Null for a target on this machine. All files but the manifest are made.
  static std::unique_ptr<Sending> begin(const Prepared& prepared,
                                        io::Staging& staging);

  // What an earlier run finished, by where its bytes are.
  struct Earlier {
    std::vector<reshard::Outcome> sent;  // the server has all of them
    std::vector<reshard::Outcome> here;  // on this machine, it is said
    size_t gone = 0;  // freed here, in part, and not all there
  };
  Earlier sort(const std::vector<reshard::Outcome>& done) const;

  // Literals and what is carried are in the files; the items of this run, and
  // those of the earlier one that are believed, are told by the engine. A job
  // of several processes sends at the end.
  void follow(reshard::Output& output, reshard::RunOptions& run);

 private:
  Sending(const Prepared& prepared, io::Upload& upload, size_t files);
  io::Upload& upload_;
  reshard::TargetParts parts_;
};

// Bytes that the spool of a target on another machine takes at most, about.
uint64_t spool_bytes(const Prepared& prepared);

}  // namespace ckpt::library
