// SPDX-License-Identifier: Apache-2.0
// What a writing command has done, or would do.
#pragma once

#include <cstdint>
#include <string>

#include "app/options/options.h"
#include "ckpt/layout.h"

namespace ckpt::app {

struct WriteReport {
  std::string command;
  const Catalog* source = nullptr;
  const Target* target = nullptr;
  std::string target_path;
  bool dry_run = false;
  uint64_t bytes_read = 0;     // payload
  uint64_t header_bytes = 0;   // read before it: headers, indexes, pickles
  uint64_t bytes_written = 0;  // whole files
  uint64_t peak_memory = 0;    // dry run
  double seconds = 0;          // real run
  bool verified = false;       // --verify: read back and compared
};

// A dry run, or any run with --json: on stdout. Otherwise one line on stderr.
void show(const WriteReport& report, const OutputOptions& output);

}  // namespace ckpt::app
