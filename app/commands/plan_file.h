// SPDX-License-Identifier: Apache-2.0
// `--dry-run -o plan.json`: a reviewed command, to be run later exactly as it
// was seen, or not at all.
//
//   {"schema":"ckpt/plan/1","version":…,"command":"reshard","words":[…],
//    "directory":cwd,"sources":[{"path":…,"files":[{"path":…,"bytes":…,
//    "mtime_ns":…,"ctime_ns":…,"inode":…,"head":sha256 of its first 4 KiB}]}],
//    "result":{…}}  <- what the dry run says with --json
//
// Sources are the checkpoint and every file or directory that an option names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/print/write_report.h"

namespace ckpt::app {

// Writes the plan of the command that runs (commands.h) to `path`.
void write_plan(const std::string& path, const std::string& source,
                const WriteReport& report, const OutputOptions& output);

struct PlannedCommand {
  std::string directory;
  std::vector<std::string> words;  // the command first
};

// Reads a plan and checks its sources. Throws unfaithful_error listing what has
// changed since, input_error if it is not a plan.
PlannedCommand read_plan(const std::string& path);

}  // namespace ckpt::app
