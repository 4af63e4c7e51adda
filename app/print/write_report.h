// SPDX-License-Identifier: Apache-2.0
// What a writing command has done, or would do.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "app/options/options.h"
#include "app/print/json_writer.h"
#include "ckpt/layout.h"

namespace ckpt::app {

// The least time a run takes, by the speed of the disks.
struct Estimate {
  double seconds = 0;
  double reads = 0;  // bytes a second
  double writes = 0;
};

struct WriteReport {
  std::string command;
  const Catalog* source = nullptr;
  const Target* target = nullptr;
  std::string target_path;
  bool single_file = false;
  bool part_of_model = false;  // a selection left weights out
  bool dry_run = false;
  uint64_t bytes_read = 0;       // payload
  uint64_t header_bytes = 0;     // read before it: headers, indexes, pickles
  uint64_t bytes_written = 0;    // whole files
  uint64_t peak_memory = 0;      // dry run
  std::optional<Estimate> time;  // dry run
  double seconds = 0;            // real run
  bool verified = false;         // --verify: read back and compared
  // The manifest of the target, below it or beside it; nothing if there is none
  std::optional<std::pair<std::string, uint64_t>> manifest;
  // Tensors and files that were written although something contradicts them.
  std::vector<std::string> unproven;
};

// Reads and writes for 0.6 s. Nothing if the run is short, or not between disks
// of this machine.
std::optional<Estimate> estimate(const WriteReport& report);

// The members of the command's JSON document, after its schema.
void write_members(JsonWriter& json, const WriteReport& report,
                   const OutputOptions* output = nullptr);

// The elements of "written" for what is not part of a target: pages, traces …
void write_notes(JsonWriter& json, const OutputOptions& output);

// A dry run, or any run with --json: on stdout. Otherwise one line on stderr.
void show(const WriteReport& report, const OutputOptions& output);

}  // namespace ckpt::app
