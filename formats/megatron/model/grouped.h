// SPDX-License-Identifier: Apache-2.0
// Experts of the first grouped layer (GroupedMLP, until 2026): a rank's experts
// are in two matrices, in their own order.
//
//   weight1 [H, E * 2F]   its elements in order are E matrices [H, 2F], …
//   weight2 [E * F, H]    … and E matrices [F, H]
//
// Each of these, transposed, is what linear_fc1 or linear_fc2 of one expert
// holds.
#pragma once

#include "ckpt/catalog.h"
#include "formats/megatron/model/facts.h"

namespace ckpt::megatron {

// Replaces "mlp.experts.weight1" by "mlp.experts.linear_fc1.weight0", …. The
// layer's router gives the number of experts, else the args. Only for the
// matrices of one expert-parallel and expert-tensor-parallel rank. Throws
// unfaithful_error.
void split_grouped_experts(Catalog& catalog, const Facts& facts);

}  // namespace ckpt::megatron
