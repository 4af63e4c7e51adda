// SPDX-License-Identifier: Apache-2.0
// A checkpoint of another format, with the names that OLMo-core has for its
// parts.
#pragma once

#include "ckpt/catalog.h"

namespace ckpt::olmo_core {

// Of olmo_core itself: as it is. Of others: parameters without "model.",
// optimizer state as state.<param>.<state>, options as param_groups.…; what
// else there is has no place and is left out, which problems say. Names of
// the parameters themselves are not translated; if none of them is one of
// OLMo-core's, a problem says that too.
Catalog review_names(Catalog source);

}  // namespace ckpt::olmo_core
