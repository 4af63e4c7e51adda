// SPDX-License-Identifier: Apache-2.0
// Prefixes that trainers put before a model's names: the attribute of an
// application, DistributedDataParallel's "module.", torch.compile's
// "_orig_mod.", the key of a state dict.
#pragma once

#include "ckpt/catalog.h"
#include "models/family.h"

namespace ckpt::families {

// Removes a prefix if all names that had it are then those of a family's
// transformers model; notes it in the assumptions. Returns true if it did. The
// role of a run's model is one, unless there are several: it says whose they
// are.
// Names of optimizer state stay; the parameters that they refer to follow.
// `likely` is tried before all others, or null.
bool unwrap(Catalog& catalog, const Family* likely);

}  // namespace ckpt::families
