// SPDX-License-Identifier: Apache-2.0
// How a tensor is cut over the ranks of an olmo_core_v1 checkpoint.
//
//   plain     [[0, n]] of the first rank only
//   flat      rank r of W: [r * c, (r + 1) * c) with c = ceil(n / W)
//   box       tensor parallelism: torch.chunk of a dimension, then of rows
//   as it was the source's own ranges and boxes, if its ranks stay the same
#pragma once

#include <cstdint>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/olmo_core/v1/index.h"

namespace ckpt::olmo_core::v1 {

struct Cut {
  bool sharded = false;
  std::vector<Shard> shards;  // by rank, including empty ones
};

class TensorCutter {
 public:
  // Throws unfaithful_error for pipeline or expert parallelism.
  TensorCutter(const Catalog& source, const Topology& topology);

  uint32_t ranks() const { return ranks_; }
  // Throws unfaithful_error if tensor parallelism has no rule for it.
  Cut cut(const Tensor& tensor) const;
  // True if the source's cuts are kept.
  bool keeps() const { return keeps_; }

 private:
  Cut keep(const Tensor& tensor) const;
  Cut flat(uint64_t count) const;
  Cut boxes(const Tensor& tensor, const TpRule& rule) const;

  const Catalog& source_;
  Topology topology_;
  uint32_t ranks_ = 1;
  bool keeps_ = false;
};

}  // namespace ckpt::olmo_core::v1
