// SPDX-License-Identifier: Apache-2.0
// What would run if a checkpoint's files were loaded elsewhere.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/scan/heads.h"
#include "formats/scan/scan.h"
#include "reshard/run/run_options.h"

namespace ckpt::library {

class PickleCheck {
 public:
  // Adds what is found. `reads`: all bytes will be read, so a server is not
  // asked for the heads of files.
  void begin(const Catalog& catalog, bool reads,
             std::vector<Problem>& problems);
  // Once all bytes were read, or as many as damage left: replaces what was
  // added.
  void again(std::vector<Problem>& problems);
  // Shows the bytes that are read.
  reshard::Passed passed(const Catalog& catalog);

 private:
  std::vector<Problem> found();
  static std::string refused_of(const scan::FileScan& file);
  static bool has_configuration(const std::string& folder);
  // Another program's, in a folder of its own (openvino/, coreml/), or a
  // pointer of git-lfs: nothing that this checkpoint's loader opens.
  bool is_foreign(const scan::FileScan& file) const;

  std::optional<scan::Heads> heads_;
  std::string folder_;              // what is looked at
  bool in_run_ = false;             // whose folders are its own
  std::vector<std::string> files_;  // or else the files of the catalog
  size_t at_ = 0;                   // its problems among the others
  size_t count_ = 0;
};

}  // namespace ckpt::library
