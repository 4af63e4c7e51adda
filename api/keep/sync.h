// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "ckpt/keep.h"
#include "lib/progress.h"

namespace ckpt::library {

// sync() for a command: with the stages of its progress. `paced`: by
// `progress`, so few requests at a time, in order.
Synced sync_with(const std::string& source, const std::string& target,
                 const SyncOptions& options, const Progress& progress,
                 bool paced);

}  // namespace ckpt::library
