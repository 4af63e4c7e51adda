// SPDX-License-Identifier: Apache-2.0
// A write whose payload other processes move, each from its own memory: rank
// 0's part before and after.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "api/write/write.h"
#include "ckpt/ckpt.h"
#include "lib/io/staging.h"
#include "reshard/ranks/owned.h"
#include "reshard/ranks/share.h"

namespace ckpt::library {

class OpenWrite {
 public:
  // Creates the files beside the target, or in the spool of one on another
  // machine, which all ranks must see: it is sent by finish(). `owners` says
  // which rank holds the bytes of a source file. Throws what execute() throws
  // before it writes.
  OpenWrite(Prepared prepared, const SaveOptions& options, ranks::Owners owners,
            uint32_t ranks, bool one_machine);
  // Removes what was not published.
  ~OpenWrite();

  // The work of a rank; `neighbours`: ranks on its machine.
  ranks::Share share_of(uint32_t rank, uint32_t neighbours) const;

  // Checks the reports of all ranks, in rank order, writes everything that is
  // not payload, and publishes.
  Preview finish(const std::vector<std::string>& reports);

 private:
  reshard::RunOptions run_options() const;

  Prepared prepared_;
  SaveOptions options_;
  std::unique_ptr<io::Staging> staging_;
  std::vector<std::vector<reshard::Item>> parts_;  // by rank
};

}  // namespace ckpt::library
