// SPDX-License-Identifier: Apache-2.0
// How large a plan is, without holding it.
//
// A plan of millions of pieces takes as much memory as the two catalogs that it
// is made from. A dry run proves the same things but shows only sums: the plan
// of some tensors is counted and freed before that of the next.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "reshard/plan.h"

namespace ckpt::reshard {

struct PlanSize {
  uint64_t tensors = 0;
  uint64_t jobs = 0;
  uint64_t lanes = 0;
  uint64_t moves = 0;
  uint64_t gathers = 0;

  void add(const Plan& plan);
  uint64_t bytes()
      const;  // that the plan takes, and the items that it is cut in
};

// About how much memory a catalog holds; pieces count by the million.
uint64_t held_bytes(const Catalog& catalog);
// The same for a target, with all that its files hold besides payload.
uint64_t held_bytes(const Target& target);

// Takes `held`, the bytes of catalogs and plan, from `max_mem`, and leaves the
// rest to the buffers. A small `held` is free: every process has that much
// beside its bound. --max-mem limits both; without it, `held` is limited as
// values are (lib/tree_memory.h), because an index may be larger than buffers
// need to be. Throws resource_error, naming a bound that is enough.
void make_room(uint64_t held, const std::string& path, uint64_t& max_mem);

// The error for `held` bytes where `limit` is the bound.
[[noreturn]] void refuse(uint64_t held, const std::string& path,
                         uint64_t limit);

// Pieces of both sides, to which a plan's size is proportional.
uint64_t piece_count(const Catalog& source, const Catalog& target);

// Pieces planned at a time: few enough to ignore their memory.
inline constexpr uint64_t kKeptPieces = 1 << 14;

// As make_plan, with the same proofs and sums. With more than `kept` pieces,
// jobs are freed once they are counted; `size` is that of the whole. The result
// can't be run. `seen` gets each part before it is freed, one at a time.
Plan make_plan_sums(const Catalog& source, const Target& target,
                    bool compare_replicas, PlanSize& size,
                    uint64_t kept = kKeptPieces,
                    const std::function<void(const Plan&)>& seen = {});

// As make_plan, for a plan whose `size` is known: nothing is allocated twice.
Plan make_plan_of_size(const Catalog& source, const Target& target,
                       bool compare_replicas, const PlanSize& size);

}  // namespace ckpt::reshard
