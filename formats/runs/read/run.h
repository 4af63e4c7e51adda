// SPDX-License-Identifier: Apache-2.0
// A training run's step as one checkpoint: the model, its optimizer by
// parameter names, and what the trainer kept beside them.
#pragma once

#include <optional>
#include <string>

#include "formats/format.h"
#include "formats/runs/find/find.h"

namespace ckpt::runs {

// Reads what find_run found. Nothing if the container turns out not to be that
// trainer's (any DCP directory may be torchtitan's, any .ckpt Lightning's).
std::optional<Catalog> read_run(const Found& found, const std::string& path,
                                const formats::ReadOptions& options);

// True for a file that only the trainer reads, wherever its step is carried:
// its tracker, its states, what says how many ranks there were. `path`: in the
// step, or beside it.
bool is_trainers_own(const std::string& trainer, const std::string& path);

}  // namespace ckpt::runs
