// SPDX-License-Identifier: Apache-2.0
// How far work is. On a terminal a bar: one line, redrawn at most ten times a
// second and gone at the end. In a log a line each minute; with --progress
// always one for each tenth; with --progress json lines of JSON, one a second
// (docs/schema/progress.json).
#pragma once

#include <cstdint>

#include "app/options/options.h"
#include "lib/progress.h"

namespace ckpt::app {

Progress make_progress(const OutputOptions& options);

// The most memory that this process had so far, in bytes.
uint64_t peak_memory();

// For say(): takes the bar off the screen until it is drawn again.
void hide_progress();

}  // namespace ckpt::app
