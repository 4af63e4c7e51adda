// SPDX-License-Identifier: Apache-2.0
// The boxes of a tensor that the ranks of a topology write.
//
//   layer axis     one box for each layer
//   expert axis    one box for each expert
//   rows, columns  one for each tensor-parallel rank
//   gated rows     two for each: gate r of TP, and up r of TP
//   replicated     one
#pragma once

#include <functional>
#include <string>

#include "ckpt/catalog.h"
#include "formats/megatron/model/keys.h"

namespace ckpt::megatron {

struct DistBox {
  Box box;
  uint64_t layer = 0;
  uint64_t expert = 0;
  uint64_t tp = 0;
};

struct DistSplit {
  uint64_t tp = 1;
  uint64_t etp = 1;  // of the experts
  uint64_t ep = 1;
};

// True if the table says how ranks share this tensor. If not, it keeps the
// source's boxes, or is one box.
bool has_rule(const Tensor& tensor, const Key& key);

// Throws unfaithful_error if a dimension does not divide.
void check_split(const Catalog& source, const Tensor& tensor, const Key& key,
                 const DistSplit& split);

// Calls `take` for each box, in order.
void each_box(const Tensor& tensor, const Key& key, const DistSplit& split,
              const std::function<void(const DistBox&)>& take);

}  // namespace ckpt::megatron
