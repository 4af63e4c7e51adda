// SPDX-License-Identifier: Apache-2.0
// Makes pieces of whole tensors from what ranks hold: ranges of flat vectors
// and slices, placed by the rules in rules.h.
#pragma once

#include "ckpt/catalog.h"
#include "formats/deepspeed/optim_states.h"
#include "formats/deepspeed/rules.h"

namespace ckpt::deepspeed {

// Adds elements [range.begin, range.end) of tensor-parallel rank `t`'s slice,
// of shape `local`; they begin at element `at` of `flat`.
void add_range(std::vector<Piece>& pieces, const Joined& joined, size_t t,
               const Shape& local, const FlatRange& range, const Flat& flat,
               uint64_t at);

// Adds rank `t`'s whole slice, a strided tensor.
void add_slice(std::vector<Piece>& pieces, const Joined& joined, size_t t,
               const Shape& local, DType dtype, const Extent& extent,
               uint8_t transform);

// Adds as replicas what rank `t` > 0 holds of a replicated tensor. Returns
// false if it is cut differently and was left out.
bool add_replicas(std::vector<Piece>& pieces, std::vector<Piece> replicas);

}  // namespace ckpt::deepspeed
