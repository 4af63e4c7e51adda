// SPDX-License-Identifier: Apache-2.0
// What a plain tensor is in the files of several ranks. A DTensor or
// ShardedTensor says which part of the whole it is. A plain tensor says
// nothing: what is beside it in the files decides.
//
//   model_rank0.pt   _flat_param  ShardedTensor [154], [0, 52) of it
//                    w1.weight    [40], in the same storage       view
//                    freqs        [5]                             replica
//   optim_rank0.pt   state.0.exp_avg  [52]                        part
//                    state.0.step     []                          replica
//                    state.0.absmax   [3], beside a DTensor       own
//
// Private to this room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "containers/torch/tree.h"

namespace ckpt::torch {

enum class Share : uint8_t {
  kReplica,  // the same on all ranks: buffers, steps
  kView,     // elements that the rank's part of a flat parameter has, too
  kPart,     // a run of a vector; the ranks' runs in their order are all of it
  kOwn,      // the rank's own, and nothing says how it joins the others'
};

// A file of ranks.
struct RankFile {
  const Tree* tree = nullptr;
  size_t rank = 0;
};

class RankShares {
 public:
  // `ranks`: how many there are; 0 if the file names don't say. Then no parts
  // are found.
  RankShares(const std::vector<RankFile>& files, size_t ranks);

  Share of(const NamedTensor& found) const;
  // Elements of a kPart without the padding of the ranks.
  uint64_t length(const std::string& name) const;

 private:
  class Survey;
  std::unordered_map<std::string, Share> shares_;  // of plain ones
  std::unordered_map<std::string, uint64_t> lengths_;
};

}  // namespace ckpt::torch
