// The progress bar: on a terminal one line, redrawn at most ten times a
// second and gone at the end; elsewhere silence, or with --progress always a
// plain line now and then.
#pragma once

#include "app/options.h"
#include "lib/progress.h"

namespace ckpt::app {

Progress make_progress(const OutputOptions& options);

// For say(): takes the bar off the screen until it is drawn again.
void hide_progress();

}  // namespace ckpt::app
