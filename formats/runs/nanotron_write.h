// SPDX-License-Identifier: Apache-2.0
// nanotron's step, written for another number of tensor- and data-parallel
// ranks: what its layers cut is cut by the same rule, the optimizer's files
// (and ZeRO 1's runs) follow, and so does what says how many ranks there are.
//
//   nanotron_write.cc    model/, optimizer/*.pt
//   nanotron_beside.cc   JSON, YAML, random/, lr_scheduler/
//
// Private to this room.
#pragma once

#include <string>

#include "ckpt/layout.h"
#include "formats/runs/nanotron.h"

namespace ckpt::runs::nanotron {

// Of what a layer of nanotron has: its part on a rank by its own rule.
class Ranks {
 public:
  // Throws unfaithful_error for parameters that no such rule explains.
  Ranks(const std::string& folder, const Step& step, const Topology& topology);

  uint64_t tp() const { return tp_; }
  uint64_t dp() const { return dp_; }
  // Nothing: the rank does not have it.
  std::optional<Share> share(const Weight& weight, uint64_t tp) const;
  // Throws unfaithful_error if model/ does not have it.
  const Weight& weight(const std::string& name) const;

 private:
  // The bias of a layer whose rows are cut is rank 0's alone.
  bool of_first_alone(const Weight& weight) const;

  const std::string& folder_;
  const Step& step_;
  const uint64_t tp_, dp_;
  std::map<std::string_view, Cut> cuts_;
};

// `catalog`: what read() made of the folder. The target's `fates` are of files
// beside the tensors, by their path in the step.
Target lay_out(const std::string& folder, const Catalog& catalog,
               const Topology& topology);

// Adds the files that hold no tensors, and says what is of a rank.
void add_beside(const std::string& folder, const Step& step, const Ranks& ranks,
                Target& target);

}  // namespace ckpt::runs::nanotron
