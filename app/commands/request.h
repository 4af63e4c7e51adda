// SPDX-License-Identifier: Apache-2.0
// What a writing command was asked for.
#pragma once

#include <string>

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
  // If not null, a part of the source is laid out and counted (within.h).
  struct Counted* counted = nullptr;
};

}  // namespace ckpt::app
