// SPDX-License-Identifier: Apache-2.0
// Can the ranks of a target share each tensor?
#pragma once

#include "formats/megatron/legacy/plan.h"

namespace ckpt::megatron {

// Gives the model's tensors of the target rules that hold there. Throws
// unfaithful_error for sizes that don't divide, tensors that no rule
// explains, and state of parameters that are not written.
void check_shares(const Catalog& source, const Facts& facts,
                  const LegacyPlan& plan, Target& target);

}  // namespace ckpt::megatron
