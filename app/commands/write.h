// SPDX-License-Identifier: Apache-2.0
// What convert, reshard and unshard have in common: a catalog becomes a
// checkpoint at DST, or a dry run says what it would be.
#pragma once

#include <string>

#include "api/edits.h"
#include "app/options/options.h"
#include "ckpt/error.h"
#include "ckpt/layout.h"

namespace CLI {
class App;
}

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
  // Not null: a part of the source is laid out and counted (within.h).
  struct Counted* counted = nullptr;
};

// SRC, DST and the options that all writing commands take.
void add_request_options(CLI::App& app, WriteRequest& request,
                         const std::string& target_help);

// The source, selected and renamed, with the rules of --family and
// --shard-dims on its tensors.
Catalog open_for_write(WriteRequest& request);

// Lays out, plans, proves; then writes and publishes, unless it is a dry run.
ExitCode write_checkpoint(const WriteRequest& request, Catalog source,
                          Layout layout);

// Neither inside of the other: the source is never changed. Throws
// usage_error.
void check_apart(const std::string& source, const std::string& target);

// True if a checkpoint of one format goes into the other with the topology
// that it has: the formats are one, or of one grid. Between others
// (the writers of a dcp, fairseq2's ranks) the sizes mean different things. A
// format without files for each rank holds whole tensors; what is asked of it
// all the same is refused by write_checkpoint.
bool same_grid(std::string_view source, std::string_view target);

}  // namespace ckpt::app
