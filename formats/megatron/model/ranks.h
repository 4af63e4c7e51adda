// SPDX-License-Identifier: Apache-2.0
// Which ranks of a Megatron job hold what.
//
//   rank = tp + TP * (dp + DP * pp)        experts: x + ETP * (e + EP * edp)
//                                          in place of tp + TP * dp
//
// On disk this only decides which file a box goes to: any job can load it.
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

// The pipeline stages of layers: [p * L / PP, (p + 1) * L / PP) are on stage p,
// unless the number of layers of each stage is given.
class Stages {
 public:
  // Throws unfaithful_error if a stage would have no layer, or if `wanted` is
  // for another number of layers. `keys` are those of the tensors.
  Stages(const Catalog& catalog, const KeyList& keys, const Facts& facts,
         uint32_t pp, const std::vector<uint64_t>& wanted = {});
  // `layer` matters only for tensors in layers.
  uint32_t of(const Key& key, uint64_t layer) const;
  // Which stack of layers is not split evenly; "" if none.
  const std::string& uneven() const { return uneven_; }

 private:
  uint32_t pp_;
  std::vector<uint64_t> ends_;  // of the requested stages
  std::map<std::string, uint64_t, std::less<>> layers_;  // by stack
  std::string uneven_;
};

// Gives each box to the data-parallel rank with the fewest bytes so far among
// those that hold it, as Megatron's fully parallel save does.
class Ranks {
 public:
  // Throws unfaithful_error for sizes that don't make a job.
  Ranks(const Topology& topology, uint64_t etp, bool experts);
  uint32_t count() const { return count_; }
  uint64_t etp() const { return etp_; }

  uint32_t dense(uint64_t tp, uint32_t pp, uint64_t bytes);
  uint32_t expert(uint64_t tp, uint64_t ep, uint32_t pp, uint64_t bytes);

 private:
  // One of the ranks first, first + step, …: each writes something.
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
