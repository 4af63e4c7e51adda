// SPDX-License-Identifier: Apache-2.0
// What a writing command was asked for.
#pragma once

#include <string>
#include <vector>

#include "api/edits.h"
#include "app/options/options.h"

namespace ckpt::app {

struct WriteRequest {
  std::string command;  // "reshard", for the report
  std::string source_path;
  std::string target_path;
  SourceOptions source;
  Selection select;
  EngineOptions engine;
  WriteOptions write;
  OutputOptions output;
  library::Edits edits;  // set by open_for_write
  bool part = false;     // likewise: less than the source's model is written
  std::vector<std::string> renamed;  // likewise: the names that --rename gave
  // If not null, a part of the source is laid out and counted (within.h).
  struct Counted* counted = nullptr;
};

}  // namespace ckpt::app
