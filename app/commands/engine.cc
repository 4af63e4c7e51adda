// SPDX-License-Identifier: Apache-2.0
#include "app/commands/engine.h"

#include <spdlog/spdlog.h>

#include "app/print/progress.h"

namespace ckpt::app {

library::Engine engine_of(const EngineOptions& engine,
                          const OutputOptions& output) {
  return {.threads = engine.threads,
          .max_mem = engine.max_mem,
          .cuda = engine.cuda,
          .io = engine.io,
          .progress = [output] { return make_progress(output); },
          .note = [](const std::string& line) { spdlog::warn("{}", line); }};
}

}  // namespace ckpt::app
