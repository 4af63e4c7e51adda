// SPDX-License-Identifier: Apache-2.0
// Casts that lose values: what was asked for, and what is refused.
#pragma once

#include <string>

#include "ckpt/ckpt.h"
#include "reshard/engine.h"

namespace ckpt::library {

// Not every type has infinities: throws an unfaithful_error if they were asked
// for and the tensor's has none.
void check_overflow(const reshard::PlannedTensor& tensor, Overflow overflow);

// A run whose casts lost values is not published, unless that was asked for:
// throws an unfaithful_error with the tensors, counts and largest magnitudes.
// `path` is the target.
void check_losses(const std::string& path, const reshard::Plan& plan,
                  const reshard::RunResult& result, Overflow overflow);

}  // namespace ckpt::library
