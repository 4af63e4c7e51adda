// SPDX-License-Identifier: Apache-2.0
// torch's Adam counts steps for each parameter, distributed checkpoints once.
#pragma once

#include "ckpt/catalog.h"

namespace ckpt::megatron {

// The tensors "step" of a catalog of ranks' files become the common_step of the
// object "optimizer"; without such tensors nothing changes. Throws
// unfaithful_error if they are not one whole number, in all ranks' files and of
// all parameters that have state.
void gather_steps(Catalog& catalog);

}  // namespace ckpt::megatron
