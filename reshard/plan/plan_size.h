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

#include "ckpt/layout.h"
#include "reshard/plan/plan.h"

namespace ckpt::reshard {

struct PlanSize {
  uint64_t tensors = 0;
  uint64_t jobs = 0;
  uint64_t lanes = 0;
  uint64_t moves = 0;
  uint64_t gathers = 0;
  // Bytes of the pieces of both sides and of the plan that may take their place
  // (make_plan_in_place), the most at one time.
  uint64_t exchanged = 0;

  void add(const Plan& plan);
  uint64_t bytes()
      const;  // that the plan takes, and the items that it is cut in
};

// About how much memory a catalog holds; pieces count by the million.
uint64_t held_bytes(const Catalog& catalog);
// Of that the pieces.
uint64_t piece_bytes(const Tensor& tensor);
uint64_t piece_bytes(const Catalog& catalog);
// What a target does, with all that is known of its files before the payload.
uint64_t held_bytes(const Target& target);

// Takes `held`, bytes of catalogs and plan, from `max_mem`, and leaves the rest
// to the buffers. Few are no burden: they lie in what any process has beside
// its bound. The limit of both is --max-mem; where nobody gave it, `held` has
// that of values (lib/tree_memory.h), for an index may be larger than buffers
// need to be. `before`: what is held until there are buffers, if that is more.
// Throws resource_error, naming a bound that is enough.
void make_room(uint64_t held, uint64_t before, const std::string& path,
               uint64_t& max_mem);

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

// The same of make_read_plan: proves that the pieces cover their tensors, and
// keeps no jobs.
PlanSize count_read_plan(const Catalog& source, bool compare_replicas);

// As make_plan, of a plan that is known to have `size`: nothing is allocated
// twice.
Plan make_plan_of_size(const Catalog& source, const Target& target,
                       bool compare_replicas, const PlanSize& size);

// The same, and a tensor's pieces go when it is planned: the plan takes their
// place, so that a run holds about half. `keep`: whose pieces stay at the
// source. Nothing that looks at pieces may come after.
Plan make_plan_in_place(Catalog& source, Target& target, bool compare_replicas,
                        const PlanSize& size,
                        const std::function<bool(const Tensor&)>& keep);

}  // namespace ckpt::reshard
