// SPDX-License-Identifier: Apache-2.0
// Files beside the tensors that a run needs but no reader opens: scheduler, RNG
// and data loader state; configurations and tokenizers.
#pragma once

#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::formats {

// Checks the catalog's file list for such files that are empty ("empty_file")
// and for JSON files that don't parse ("unreadable_json"). Pickles are left to
// the scan for code.
std::vector<Problem> check_loose_files(const Catalog& catalog);

}  // namespace ckpt::formats
