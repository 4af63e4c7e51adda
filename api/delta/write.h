// SPDX-License-Identifier: Apache-2.0
// ckpt/delta.h for a command, which has limits and callbacks of its own.
#pragma once

#include <string>

#include "api/engine.h"
#include "ckpt/delta.h"

namespace ckpt::library {

// Of `options` without its threads, max_mem and progress, which are the
// engine's; `note` gets the assumptions that names meet by.
DeltaReport write_delta(Catalog a, Catalog b, const std::string& target,
                        const DeltaOptions& options, const Engine& engine);
DeltaReport restore_delta(Catalog base, const std::string& delta,
                          const std::string& target,
                          const DeltaOptions& options, const Engine& engine);

}  // namespace ckpt::library
