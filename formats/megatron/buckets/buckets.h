// SPDX-License-Identifier: Apache-2.0
// Views flat buffers of the distributed optimizer as the parameters that they
// hold.
//
//   optimizer.distributed…bucket_idx_0.exp_avg   | fc2 | gap | fc1 | … 1-D
//                                                   │          └────────┐
//   optimizer.state.exp_avg.decoder.layers.mlp.linear_fc2.weight  ◄─ flat
//   range of the rank's box;  …linear_fc1.weight: [gate; up] are two boxes
//
// No byte moves. Gaps are empty and left out.
#pragma once

#include "ckpt/catalog.h"
#include "formats/megatron/model/facts.h"

namespace ckpt::megatron {

// Replaces the bucket tensors of a catalog whose model tensors have their kind
// and rule. If it can't be told which parameters they hold, they stay, and a
// problem says why. Each main weight gets a claim, since the order of
// parameters is inferred.
void view_buckets(Catalog& catalog, const Facts& facts);

}  // namespace ckpt::megatron
