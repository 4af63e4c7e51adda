// SPDX-License-Identifier: Apache-2.0
// What of a step each rank of another topology has, by nanotron's own rules.
// Private to this room.
//
// Pipeline stages are filled in the order of the model's blocks: embedding,
// layers, norm, head. A block's cost are the multiplications of a token: 4 h h
// + 3 f h of a layer, v h of the head. A stage ends behind the block with which
// the sum passes its share of all (NanotronModel's build_model).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/layout.h"
#include "formats/runs/nanotron/nanotron.h"

namespace ckpt::runs::nanotron {

class Ranks {
 public:
  // Throws unfaithful_error for parameters that no such rule explains.
  Ranks(const std::string& folder, const Step& step, const Topology& topology);

  uint64_t tp() const { return tp_; }
  uint64_t dp() const { return dp_; }
  uint64_t pp() const { return pp_; }
  // Other stages than the source's.
  bool moves() const { return moves_; }
  // Where it goes; of a step that keeps its stages that of its files' names.
  uint64_t stage(const Weight& weight) const;
  // Nothing: the rank does not have it.
  std::optional<Share> share(const Weight& weight, uint64_t tp) const;
  // Throws unfaithful_error if model/ does not have it.
  const Weight& weight(const std::string& name) const;

 private:
  void find_cuts();
  void find_stages();
  uint64_t block_of(const std::string& name) const;
  // The bias of a layer whose rows are cut is rank 0's alone.
  bool of_first_alone(const Weight& weight) const;

  const std::string& folder_;
  const Step& step_;
  const uint64_t tp_, dp_, pp_;
  const bool moves_;
  std::map<std::string_view, Cut> cuts_;
  std::vector<uint64_t> stages_;  // of the blocks; empty: all in the first
};

}  // namespace ckpt::runs::nanotron
