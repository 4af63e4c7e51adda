// SPDX-License-Identifier: Apache-2.0
// Opens a source as the options say, and reports what there is to say about it.
#pragma once

#include <string>
#include <vector>

#include "app/options/options.h"
#include "ckpt/catalog.h"

namespace ckpt::app {

// Problems as log lines: damage and warnings as warnings, notes at -v.
void log_problems(const std::vector<Problem>& problems);

// formats::open with the options, and its problems as log lines (damage and
// warnings as warnings, notes at -v), its assumptions at -v.
Catalog open_source(const std::string& path, const SourceOptions& options);

}  // namespace ckpt::app
