// SPDX-License-Identifier: Apache-2.0
// The engine's options, from a command line.
#pragma once

#include "api/engine.h"
#include "app/options/options.h"

namespace ckpt::app {

// Progress goes to the terminal, warnings to the log.
library::Engine engine_of(const EngineOptions& engine,
                          const OutputOptions& output);

}  // namespace ckpt::app
