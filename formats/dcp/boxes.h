// SPDX-License-Identifier: Apache-2.0
// Which boxes of a tensor a rank holds, as FSDP2 over tensor parallelism cuts
// on a mesh of dp x tp ranks: rank = dp * tp_ranks + tp.
//
//   tensor ──tp: torch.chunk of one dim──► part ──dp: torch.chunk of rows──►
//
// torch.chunk gives ceil(n / ranks) to each rank, then one short part, then
// none: 5 rows over 4 ranks: 2, 2, 1, 0. A rank without rows still has a box:
// of size 0, at the end of the dimension. (torch calls rows of a part
// _StridedShard; formats: dcp, section 7.) Also used by olmo_core.
#pragma once

#include <cstdint>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::dcp {

struct Mesh {
  uint32_t dp = 1;
  uint32_t tp = 1;
  uint32_t ranks() const { return dp * tp; }
};

// How one tensor is cut.
class Cutter {
 public:
  // `rule` is known unless the mesh has one tp rank; `rows`: whether dp cuts
  // dimension 0. Throws unfaithful_error if the groups of a split dimension
  // do not divide it.
  Cutter(const Tensor& tensor, const TpRule& rule, bool rows, const Mesh& mesh);

  // Calls add(box) for the boxes of a rank: one, or one for each group.
  template <class Add>
  void boxes(uint32_t rank, Add add) const {
    const uint32_t tp = split_ ? rank % mesh_.tp : 0;
    const uint32_t dp = rows_ ? rank / mesh_.tp : 0;
    for (uint32_t group = 0; group < groups_; ++group)
      if (box_of(tp, dp, group)) add(box_);
  }

  // The ranks with the same non-empty boxes as `rank`: first, and then every
  // `step`-th, `count` of them.
  struct Replicas {
    uint32_t first = 0;
    uint32_t step = 1;
    uint32_t count = 1;
  };
  Replicas replicas(uint32_t rank) const;

 private:
  bool box_of(uint32_t tp, uint32_t dp, uint32_t group) const;

  const Shape& shape_;
  Mesh mesh_;
  bool split_ = false;  // by tp, along dim_
  bool rows_ = false;   // by dp
  uint32_t dim_ = 0;
  uint32_t groups_ = 1;
  mutable Box box_;
};

}  // namespace ckpt::dcp
