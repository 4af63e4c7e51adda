// SPDX-License-Identifier: Apache-2.0
// Files beside the tensors that a run needs but no reader opens: scheduler, RNG
// and data loader state; configurations and tokenizers.
#pragma once

#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"

namespace ckpt::formats {

// Checks the catalog's file list for such files that are empty ("empty_file")
// and for JSON files that don't parse ("unreadable_json"). Pickles are left to
// the scan for code.
std::vector<Problem> check_loose_files(const Catalog& catalog);

// Warns of JSON documents that are copied and don't parse, which the target
// will have as the source does ("unreadable_json"). Local files only: those on
// a server come once, when they are copied.
void tell_unreadable_copies(Target& target);

}  // namespace ckpt::formats
