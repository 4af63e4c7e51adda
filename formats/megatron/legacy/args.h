// SPDX-License-Identifier: Apache-2.0
// args for another topology: changes what follows from it, and carries every
// other entry, known or not.
#pragma once

#include "formats/megatron/legacy/plan.h"

namespace ckpt::megatron {

// Changes a copy of the source's args. `padded_vocab` 0: unchanged.
void update_legacy_args(pickle::Document& document, pickle::Id args,
                        const Facts& facts, const LegacyPlan& plan,
                        const LegacyCoordinates& at, uint64_t padded_vocab);

}  // namespace ckpt::megatron
