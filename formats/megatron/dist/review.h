// SPDX-License-Identifier: Apache-2.0
// A source as a distributed checkpoint has it: sharded keys, optimizer state
// parameter by parameter, a vocabulary that the ranks divide. No byte moves.
#pragma once

#include "ckpt/catalog.h"
#include "ckpt/layout.h"

namespace ckpt::megatron {

// For both backends. Throws unfaithful_error for what can't be viewed so.
Catalog review_for_dist(Catalog source, const Layout& layout);

}  // namespace ckpt::megatron
