// SPDX-License-Identifier: Apache-2.0
// Where a rank's part of a tensor lies in the whole: the one place that knows
// how fairseq2 cuts.
//
//   global tensor ──tp: equal parts of one dim──► tp-local ──sdp: rows──► file
//
// Data-parallel (FSDP) ranks hold chunks of dimension 0 of the tp-local
// tensor, as torch.chunk makes them: ceil(rows / n) rows each, then one chunk
// of fewer, then none. 10 rows over 4: 3, 3, 3, 1; over 8: 2, 2, 2, 2, 2, 0.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::fairseq2 {

struct Rows {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t count() const { return end - begin; }
  friend bool operator==(const Rows&, const Rows&) = default;
};

// The rows of chunk `rank` of `ranks` (at least 1).
Rows chunk(uint64_t rows, uint64_t ranks, uint64_t rank);

// The shape of one tp rank's part. The dimension has to divide (divides).
Shape tp_local(const Shape& global, const TpRule& rule, uint32_t tp);
// The global shape, when `local` is one of `tp` parts; nothing on overflow.
std::optional<Shape> tp_global(const Shape& local, const TpRule& rule,
                               uint32_t tp);
// Whether the dimension is there and is a multiple of tp * groups.
bool divides(const Shape& global, const TpRule& rule, uint32_t tp);

// A box of the global tensor, and where it begins in a tp-local tensor.
struct Placed {
  Box box;
  Dims local;  // its first element, in the coordinates of the tp-local tensor
};

// What rows [begin, end) of tp rank `rank`'s part are in the global tensor:
// one box, or one for each group that they touch. Rows are dimension 0 of the
// tp-local tensor; 0-d tensors ignore them.
std::vector<Placed> place(const Shape& global, const TpRule& rule, uint32_t tp,
                          uint32_t rank, const Rows& rows);

}  // namespace ckpt::fairseq2
