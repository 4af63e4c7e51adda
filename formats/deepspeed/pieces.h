// SPDX-License-Identifier: Apache-2.0
// Pieces of whole tensors from what ranks hold: ranges of flat vectors and
// slices, placed by the rules of rules.h.
#pragma once

#include "ckpt/catalog.h"
#include "formats/deepspeed/optim_states.h"
#include "formats/deepspeed/rules.h"

namespace ckpt::deepspeed {

// Elements [range.begin, range.end) of tensor-parallel rank `t`'s slice, whose
// shape is `local`, begin at element `at` of `flat`.
void add_range(std::vector<Piece>& pieces, const Joined& joined, size_t t,
               const Shape& local, const FlatRange& range, const Flat& flat,
               uint64_t at);

// The whole slice of rank `t`, a strided tensor.
void add_slice(std::vector<Piece>& pieces, const Joined& joined, size_t t,
               const Shape& local, DType dtype, const Extent& extent,
               uint8_t transform);

// What rank `t` > 0 holds of a replicated tensor joins the pieces that are
// there as replicas. False: it is cut otherwise and was left out.
bool add_replicas(std::vector<Piece>& pieces, std::vector<Piece> replicas);

}  // namespace ckpt::deepspeed
