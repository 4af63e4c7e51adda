// SPDX-License-Identifier: Apache-2.0
// A checkpoint of another format, with OLMo-core's names for its parts.
#pragma once

#include "ckpt/catalog.h"

namespace ckpt::olmo_core {

// Returns a source of olmo_core itself unchanged. For others: parameters
// without "model.", optimizer state as state.<param>.<state>, options as
// param_groups.…. Anything else has no place and is left out, which problems
// say. Names of the parameters themselves are not translated; if none is one of
// OLMo-core's, a problem says that, too.
Catalog review_names(Catalog source);

}  // namespace ckpt::olmo_core
