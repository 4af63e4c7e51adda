// SPDX-License-Identifier: Apache-2.0
// config.json: the experiment, whose `model` block shows the family.
//
//   {"model": {"block": {"name": "reordered_norm",
//                        "sequence_mixer": {"qk_norm": {…}, …}}}}
//
// Before 2.5 the mixer was called "attention".
#pragma once

#include "ckpt/catalog.h"

namespace ckpt::olmo_core {

// Sets the family, and says so in the assumptions, if the file at `path` is
// clear about it. An unreadable file is a problem, not an error: only the
// family depends on it.
void read_family(const std::string& path, Catalog& catalog);

}  // namespace ckpt::olmo_core
