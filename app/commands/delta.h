// SPDX-License-Identifier: Apache-2.0
// `diff --write`: a difference as a file or folder, in one of three forms.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/commands/request.h"
#include "app/options/options.h"
#include "ckpt/catalog.h"
#include "ckpt/error.h"

namespace CLI {
class App;
}

namespace ckpt::app {

struct DeltaOptions {
  std::string path;   // "": nothing is written
  uint64_t rank = 0;  // --as-lora
  bool lossless = false;
  std::string to;
  std::optional<DType> dtype;
  bool overwrite = false;
  bool sync = true;
  bool dry_run = false;
};

// --write --as-lora --lossless --to --dtype --overwrite --no-fsync -n
void add_delta_options(CLI::App& app, DeltaOptions& options);
// Throws usage_error for options that contradict each other or the selection.
void check_delta_options(const DeltaOptions& options, const Selection& select);

// The two that a command was given.
struct DeltaPaths {
  std::string a, b;
};

// Writes it, or says what would be.
ExitCode write_delta(Catalog a, Catalog b, const DeltaPaths& paths,
                     const DeltaOptions& options, const Selection& select,
                     const std::string& family, const EngineOptions& engine,
                     const OutputOptions& output);
// `convert --delta`: B's files again, of A (the request's source) and a
// lossless delta.
ExitCode restore_delta(const WriteRequest& request, const std::string& delta);

}  // namespace ckpt::app
