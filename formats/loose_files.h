// SPDX-License-Identifier: Apache-2.0
// Files beside the tensors that a run needs and no reader opens: states of
// schedulers, random numbers, data loaders; configurations and tokenizers.
#pragma once

#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::formats {

// Looks at the catalog's file list: files of such parts that are empty
// ("empty_file"), and JSON documents that are none ("unreadable_json"). What
// is pickled is looked at by who scans for code.
std::vector<Problem> check_loose_files(const Catalog& catalog);

}  // namespace ckpt::formats
