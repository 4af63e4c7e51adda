// SPDX-License-Identifier: Apache-2.0
// Casts that lose values: what the user allows, and what is refused.
#pragma once

#include <string>

#include "ckpt/ckpt.h"
#include "reshard/engine.h"

namespace ckpt::library {

// Throws unfaithful_error if infinities are requested and the tensor's type has
// none.
void check_overflow(const reshard::PlannedTensor& tensor, Overflow overflow);

// Keeps a run whose casts lost values from being published, unless that is
// allowed: throws unfaithful_error with tensors, counts and largest magnitudes.
// `path` is the target.
void check_losses(const std::string& path, const reshard::Plan& plan,
                  const reshard::RunResult& result, Overflow overflow);

}  // namespace ckpt::library
