// SPDX-License-Identifier: Apache-2.0
// Pieces of one tensor out of what its files hold: replicas may overlap in
// any way, holes are damage. Private to v1_shards.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::olmo_core::v1 {

// Ranges that overlap in part are cut where others begin and end, boxes that
// do become their rows: so that pieces with common elements are equal. What
// that may cost in all tensors of a part.
struct CoverBudget {
  uint64_t pieces = 20'000'000;
};

// `pieces`: flat ranges of the whole tensor and boxes, none of them empty. The
// result covers the tensor. Throws input_error about `index`, resource_error.
std::vector<Piece> cover(const std::string& index, const Tensor& tensor,
                         std::vector<Piece> pieces, CoverBudget& budget);

}  // namespace ckpt::olmo_core::v1
