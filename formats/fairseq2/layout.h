// SPDX-License-Identifier: Apache-2.0
// Where a rank's part of a tensor is in the whole: the one place that knows how
// fairseq2 cuts.
//
//   global tensor ──tp: equal parts of one dim──► tp-local ──sdp: rows──► file
//
// Data-parallel (FSDP) ranks hold chunks of dimension 0 of the tp-local tensor,
// as torch.chunk makes them (lib/cuts.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ckpt/catalog.h"
#include "lib/cuts.h"

namespace ckpt::fairseq2 {

using Rows = cuts::Range;

// The shape of one tp rank's part. The dimension must divide (divides).
Shape tp_local(const Shape& global, const TpRule& rule, uint32_t tp);
// The global shape, if `local` is one of `tp` parts; nothing on overflow.
std::optional<Shape> tp_global(const Shape& local, const TpRule& rule,
                               uint32_t tp);
// True if the dimension exists and is a multiple of tp * groups.
bool divides(const Shape& global, const TpRule& rule, uint32_t tp);

// Places rows [begin, end) of tp rank `rank`'s part in the global tensor: one
// box, or one for each group that they touch, and where it begins in these
// rows. Rows are dimension 0 of the tp-local tensor; 0-d tensors ignore them.
std::vector<cuts::Part> place(const Shape& global, const TpRule& rule,
                              uint32_t tp, uint32_t rank, const Rows& rows);

}  // namespace ckpt::fairseq2
