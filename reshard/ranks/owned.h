// SPDX-License-Identifier: Apache-2.0
// A plan whose sources are in the memory of ranks: whoever has the bytes writes
// them. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "reshard/plan/plan.h"
#include "reshard/plan/work.h"

namespace ckpt::ranks {

// By source file: the rank that has it; kNone: doesn't matter.
using Owners = std::vector<uint32_t>;

// Cuts the jobs that read from several ranks, so that each reads from one.
//
//   sources  | rank 0 | rank 1 |        of each row its own columns
//   target   |     one row     |   ─►   | rank 0's |  and  | rank 1's |
void cut_by_owner(reshard::Plan& plan, const Owners& owners);

// The items of each rank, for a plan that was cut this way.
std::vector<std::vector<reshard::Item>> split_by_owner(
    const reshard::Plan& plan, const Owners& owners, uint32_t ranks);

}  // namespace ckpt::ranks
