// SPDX-License-Identifier: Apache-2.0
// What is at a target before it is written, and what stands beside it then.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ckpt/error.h"

namespace ckpt::io {

struct StagingOptions {
  bool single_file = false;  // DST is a file, not a directory
  bool overwrite = false;    // DST may exist; it is replaced at the end
  bool resume = false;       // keep what an earlier run left
  bool sync = true;          // flush files and directories before the rename
  // Suffixes of files that are beside a single file and describe it: those of a
  // replaced file are removed with it.
  std::vector<std::string> companions = {};
};

inline constexpr std::string_view kUpload = "upload";

bool exists(const std::string& path);
Error exists_already(const std::string& target);
std::string beside(const std::string& target, std::string_view suffix);
std::string stripped(std::string target);

// The path beside which a target is staged: the target itself, or a name in the
// spool for one on another machine.
std::string staging_place(const std::string& target);

// What the directory and the lock of a salvage to a place are called, without
// the dot.
std::string salvage_name(const std::string& place);

// An earlier run came so far that objects of it may stand at the target, which
// is on another machine: they are this run's own when it goes on.
bool is_half_published(const std::string& target);

// If the target exists: an empty directory may be filled, anything else needs
// --overwrite.
void check_target(const std::string& target, const StagingOptions& options);
// What is beside a target while it is written has its name and more: a name
// that leaves no room for it would fail after the last byte.
void check_name(const std::string& target, const std::string& place,
                const StagingOptions& options);
// check_target() of a target on another machine.
void check_remote(const std::string& target, const StagingOptions& options);

}  // namespace ckpt::io
