// SPDX-License-Identifier: Apache-2.0
// Files that two checkpoints have beside their tensors: random states,
// schedulers, trainers' states.
#pragma once

#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/check.h"

namespace ckpt::library {

// Adds a difference ("file") for each of the same name that has other bytes. Of
// zip archives the records are compared, since torch.save names their directory
// after the file.
void compare_files(const Catalog& a, const Catalog& b,
                   std::vector<Difference>& differences);

}  // namespace ckpt::library
