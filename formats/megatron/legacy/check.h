// SPDX-License-Identifier: Apache-2.0
// Checks that the ranks of a target can share each tensor.
#pragma once

#include "formats/megatron/legacy/plan.h"

namespace ckpt::megatron {

// Gives the target's model tensors rules that hold there. Throws
// unfaithful_error for sizes that don't divide, tensors that no rule explains,
// and state of unwritten parameters.
void check_shares(const Catalog& source, const Facts& facts,
                  const LegacyPlan& plan, Target& target);

}  // namespace ckpt::megatron
