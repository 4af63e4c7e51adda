// SPDX-License-Identifier: Apache-2.0
// What a model keeps in files of its own, beside its model states:
//
//   layer_LL-model_MM-model_states.pt              a layer of a pipeline
//   layer_L_expert_E_mp_rank_MM_model_states.pt    an expert of the L-th MoE
//                                                  layer; its names say E, too
//   expp_rank_X_mp_rank_MM_optim_states.pt         an expert-parallel rank's
//                                                  optimizer, without ZeRO
//
// ZeRO cuts the groups of experts over those ranks alone that hold the same
// ones, under the numbers that they have there:
//
//   2 ranks hold 4 experts   group 0   partition 0     partition 1
//                            group 1   experts 0, 1    experts 0, 1 (2, 3)
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "formats/deepspeed/assemble.h"
#include "formats/deepspeed/locate.h"

namespace ckpt::deepspeed {

// The same tensors of all tensor-parallel ranks.
struct Slices {
  std::vector<Assembler::Named> ranks;
  std::vector<std::string> paths;

  // Takes the next rank's file; its tensors get `prefix`. Throws LostFile if
  // it is not the next one's.
  void take(const FileName& file, const torch::Container& container,
            const std::string& prefix);
  // Throws LostFile if there are fewer than `tp` ranks.
  void check(uint64_t tp, const std::string& what) const;
};

using Layers = std::map<uint32_t, Slices>;
using Experts = std::map<std::pair<uint32_t, uint32_t>, Slices>;  // layer, one

// Throws input_error for a file whose names are of another expert, LostFile if
// a gate chooses among experts that no file has.
void check_experts(const Experts& experts, const Catalog& catalog);

// A stage as Assembler takes it: the groups that all ranks share, then those of
// each expert-parallel rank, under the experts' own numbers. Throws
// unfaithful_error for groups that are cut in another way.
std::vector<std::vector<Column>> expert_parts(std::span<const Column> stage);

}  // namespace ckpt::deepspeed
