// SPDX-License-Identifier: Apache-2.0
// Which boxes of a tensor a rank holds when FSDP2 over tensor parallelism cuts
// it on a mesh of dp x tp ranks: rank = dp * tp_ranks + tp.
//
//   tensor ──tp: torch.chunk of one dim──► part ──dp: torch.chunk of rows──►
//
// A rank without rows (lib/cuts.h: chunk) still has a box, of size 0, at the
// end of the dimension. (torch calls rows of a part _StridedShard; formats:
// dcp, section 7.) Also used by olmo_core.
#pragma once

#include <cstdint>
#include <vector>

#include "ckpt/catalog.h"
#include "lib/cuts.h"

namespace ckpt::dcp {

struct Mesh {
  uint32_t dp = 1;
  uint32_t tp = 1;
  uint32_t ranks() const { return dp * tp; }
};

// How one tensor is cut.
class Cutter {
 public:
  // `rule` must be known unless the mesh has one tp rank; `rows`: whether dp
  // cuts dimension 0. Throws unfaithful_error if the groups of a split
  // dimension do not divide it.
  Cutter(const Tensor& tensor, const TpRule& rule, bool rows, const Mesh& mesh);

  // Calls add(box) for the boxes of a rank: one, or one per group.
  template <class Add>
  void boxes(uint32_t rank, Add add) const {
    if (!split_ && !rows_) return add(box_);
    const uint32_t tp = rank % mesh_.tp;
    const uint32_t dp = rank / mesh_.tp;
    if (rows_ && dim_ != 0) {
      const cuts::Range rows = cuts::chunk(shape_[0], mesh_.dp, dp);
      set(0, rows.begin, rows.count());
    }
    bool any = false;
    for (const cuts::Run& run : runs(tp, dp))
      if (set(dim_, run.whole, run.count)) {
        add(box_);
        any = true;
      }
    if (any) return;
    set(dim_, 0, 0);
    add(box_);
  }

  // The ranks with the same non-empty boxes as `rank`: `count` ranks from
  // `first`, each `step` after the last.
  struct Replicas {
    uint32_t first = 0;
    uint32_t step = 1;
    uint32_t count = 1;
  };
  Replicas replicas(uint32_t rank) const;

 private:
  bool set(size_t d, uint64_t begin, uint64_t count) const;
  // The runs of dimension dim_ that remain after tp's cut and, if that is rows,
  // dp's.
  cuts::Runs runs(uint32_t tp, uint32_t dp) const;

  const Shape& shape_;
  Mesh mesh_;
  bool split_ = false;  // by tp, along dim_
  bool rows_ = false;   // by dp, along dimension 0
  uint32_t dim_ = 0;    // 0 if tp doesn't split it
  uint32_t groups_ = 1;
  mutable Box box_;
};

}  // namespace ckpt::dcp
