// SPDX-License-Identifier: Apache-2.0
// The output of `inspect --digest` and `--stats` for people.
#pragma once

#include <string>

#include "api/check/read_all.h"
#include "ckpt/catalog.h"

namespace ckpt::app {

// One row per tensor: its digest and its statistics, whichever were read.
std::string contents_text(const Catalog& catalog,
                          const library::Reading& reading, size_t width);

}  // namespace ckpt::app
