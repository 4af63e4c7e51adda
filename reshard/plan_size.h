// SPDX-License-Identifier: Apache-2.0
// How large a plan is, without holding it.
//
// A plan of millions of pieces takes as much memory as the two catalogs that it
// is made of. A dry run proves the same and shows only sums: what has been
// planned for some tensors is counted and let go before the next ones.
#pragma once

#include <cstdint>

#include "reshard/plan.h"

namespace ckpt::reshard {

struct PlanSize {
  uint64_t jobs = 0;
  uint64_t lanes = 0;
  uint64_t moves = 0;
  uint64_t gathers = 0;

  void add(const Plan& plan);
  uint64_t bytes() const;  // that the plan would take
};

// Pieces that are planned at a time: so few are no burden.
inline constexpr uint64_t kKeptPieces = 1 << 14;

// As make_plan, with the same proofs and sums. Of more than `kept` pieces the
// jobs are let go when they are counted; `size` is that of the whole. Not to be
// run.
Plan make_plan_sums(const Catalog& source, const Target& target,
                    bool compare_replicas, PlanSize& size,
                    uint64_t kept = kKeptPieces);

}  // namespace ckpt::reshard
