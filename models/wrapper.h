// SPDX-License-Identifier: Apache-2.0
// Prefixes that trainers put before a model's names: the attribute of an
// application, DistributedDataParallel's "module.", torch.compile's
// "_orig_mod.", the key of a state dict.
#pragma once

#include "ckpt/catalog.h"

namespace ckpt::families {

// Takes them off, if the names are then those of a family's transformers
// model, every one that had the prefix; says so in the assumptions. True if it
// did. The names of optimizer state stay, its parameters follow.
bool unwrap(Catalog& catalog);

}  // namespace ckpt::families
