// SPDX-License-Identifier: Apache-2.0
// Experts of the first grouped layer (GroupedMLP, until 2026): all those of a
// rank in two matrices, in an order of their own.
//
//   weight1 [H, E * 2F]   its elements in order are E matrices [H, 2F], …
//   weight2 [E * F, H]    … and E matrices [F, H]
//
// Each one transposed is what linear_fc1 and linear_fc2 of one expert hold.
#pragma once

#include "ckpt/catalog.h"
#include "formats/megatron/model/facts.h"

namespace ckpt::megatron {

// Puts "mlp.experts.linear_fc1.weight0", … in the place of
// "mlp.experts.weight1". How many experts there are, says the router of the
// layer, else the args. Only for the matrices of one expert-parallel and
// expert-tensor-parallel rank. Throws unfaithful_error.
void split_grouped_experts(Catalog& catalog, const Facts& facts);

}  // namespace ckpt::megatron
