// SPDX-License-Identifier: Apache-2.0
// Finds which number in file names is the rank, if each rank wrote one set of
// files.
//
//   checkpoint_1_100-shard0.pt  checkpoint_1_100-shard1.pt      two ranks
//   model_rank0.pt optim_rank0.pt model_rank1.pt optim_rank1.pt  two ranks
#pragma once

#include <string>
#include <vector>

namespace ckpt::fsdp {

// Each rank's names, in rank order. The rank is the last number that counts
// from 0 without a gap in every set of names that differ in nothing else. Empty
// if there is none (for one file: if it has no 0).
std::vector<std::vector<std::string>> by_rank(
    const std::vector<std::string>& names);

// Where by_rank() finds no ranks: the files that some ranks lack, though a set
// of names has them all. Rank 0 alone may have a file for all of them.
//
//   model_rank0.pt model_rank1.pt model_rank2.pt optim_rank0.pt optim_rank2.pt
//                                                              optim_rank1.pt
std::vector<std::string> lost_of_ranks(const std::vector<std::string>& names);

}  // namespace ckpt::fsdp
