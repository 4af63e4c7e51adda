// SPDX-License-Identifier: Apache-2.0
// integrity.json, which cores from 0.17.1 on can write beside a checkpoint:
//
//   {"algorithm": "sha256", "files": {".metadata": "4f03…", …}}
//
// Files that it does not list are ignored, as in Megatron.
#pragma once

#include <string>

#include "formats/traits.h"

namespace ckpt::megatron {

// Reads every file that the manifest of a directory lists. Does nothing if
// there is no manifest. A damaged manifest is a problem, not an error.
formats::FileCheck check_integrity_file(const std::string& directory,
                                        const Progress& progress);

}  // namespace ckpt::megatron
