// SPDX-License-Identifier: Apache-2.0
// How torchtitan and transformers arrange the same elements: rotary rows, the
// three projections that are trained as one, and experts. Private to this room.
//
//   torchtitan                        transformers
//   wqkv: for each key head its       q_proj, k_proj, v_proj
//         queries, key, value
//   w1_EFD, w3_EFD [E, F, D]          gate_up_proj [E, 2F, D], or each
//                                     expert's gate_proj, up_proj [F, D]
//   mlp1_weight_EGD [E, 2F, D]        gate_up_proj [E, D, 2F]      (gpt_oss)
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "formats/runs/models/titan_config.h"
#include "models/view.h"

namespace ckpt::runs::titan {

// Rearranges each head's rows, of weights or biases: two halves become pairs,
// or the reverse.
families::View turn(const families::View& view, uint64_t heads, bool to_pairs);

// Weights, or biases: all three of the same.
families::View fused(const std::array<families::View, 3>& three,
                     const Config& config);
std::array<families::View, 3> unfused(const families::View& view,
                                      const Config& config);

// One expert of [E, …], and the halves of [E, 2F, D].
families::View expert(const families::View& all, uint64_t index);
families::View half(const families::View& both, uint64_t index);
// Swaps the last two of three dimensions.
families::View transposed(const families::View& view);

}  // namespace ckpt::runs::titan
