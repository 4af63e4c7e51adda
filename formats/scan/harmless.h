// SPDX-License-Identifier: Apache-2.0
// The globals that a pickle may name without running code that its reader
// does not know: what torch.load(weights_only=True) allows, and the classes
// that trainers leave in checkpoints.
//
// It lists what is allowed, since lists of what is forbidden are never
// complete: whatever is not here "executes".
#pragma once

#include "lib/pickle/trace.h"

namespace ckpt::scan {

// True if every use of the global is known to be harmless. Merely naming a
// global imports its module, so one that is not listed is never harmless.
bool is_harmless(const pickle::Mention& global);

}  // namespace ckpt::scan
