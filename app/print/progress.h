// SPDX-License-Identifier: Apache-2.0
// Progress of work. On a terminal a bar: one line, redrawn at most ten times a
// second and removed at the end. In a log one line a minute; with --progress
// always one for each tenth; with --progress json one line of JSON a second
// (docs/schema/progress.json).
#pragma once

#include <cstdint>

#include "app/options/options.h"
#include "lib/progress.h"

namespace ckpt::app {

Progress make_progress(const OutputOptions& options);

// This process's peak memory so far, in bytes.
uint64_t peak_memory();

}  // namespace ckpt::app
