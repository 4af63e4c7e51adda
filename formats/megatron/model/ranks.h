// SPDX-License-Identifier: Apache-2.0
// Which rank of a Megatron job holds what.
//
//   rank = tp + TP * (dp + DP * pp)        experts: x + ETP * (e + EP * edp)
//                                          in place of tp + TP * dp
//
// On disk this only decides whose file a box lands in: any job can load it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <string>
#include <tuple>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/megatron/model/facts.h"
#include "formats/megatron/model/keys.h"

namespace ckpt::megatron {

// Pipeline stages of layers: [p * L / PP, (p + 1) * L / PP) are on stage p,
// unless somebody says how many layers each stage has.
class Stages {
 public:
  // Throws unfaithful_error if a stage would hold no layer, or if `wanted` is
  // for another number of layers.
  Stages(const Catalog& catalog, const Facts& facts, uint32_t pp,
         const std::vector<uint64_t>& wanted = {});
  // `layer` counts for tensors in layers alone.
  uint32_t of(const Key& key, uint64_t layer) const;
  // Some stack of layers is not split evenly.
  const std::string& uneven() const { return uneven_; }

 private:
  uint32_t pp_;
  std::vector<uint64_t> ends_;  // of the stages that somebody asked for
  std::map<std::string, uint64_t, std::less<>> layers_;  // by stack
  std::string uneven_;
};

// Gives each box to one of the data-parallel ranks that hold it: the one with
// the fewest bytes so far, as Megatron's fully parallel save does.
class Ranks {
 public:
  // Throws unfaithful_error for sizes that don't make a job.
  Ranks(const Topology& topology, uint64_t etp, bool experts);
  uint32_t count() const { return count_; }
  uint64_t etp() const { return etp_; }

  uint32_t dense(uint64_t tp, uint32_t pp, uint64_t bytes);
  uint32_t expert(uint64_t tp, uint64_t ep, uint32_t pp, uint64_t bytes);

 private:
  // Ranks first, first + step, …: each writes something.
  uint32_t take(uint64_t first, uint64_t step, uint64_t size, uint64_t bytes);

  Topology topology_;
  uint64_t etp_;
  uint32_t count_;
  using Load = std::pair<uint64_t, uint64_t>;  // bytes, rank
  using Loads =
      std::priority_queue<Load, std::vector<Load>, std::greater<Load>>;
  std::map<std::pair<uint64_t, uint64_t>, Loads> groups_;  // by first and step
};

}  // namespace ckpt::megatron
