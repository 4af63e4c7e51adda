// SPDX-License-Identifier: Apache-2.0
// Makes the pieces of one tensor from what its files hold: replicas may overlap
// in any way, holes are damage. Private to shards.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::olmo_core::v1 {

// Partly overlapping ranges are cut where others begin and end, and partly
// overlapping boxes become their rows, so that pieces with common elements are
// equal. This limits the cost for all tensors of a part.
struct CoverBudget {
  uint64_t pieces = 20'000'000;
};

// `pieces` are flat ranges of the whole tensor and boxes, none of them empty.
// The result covers the tensor. Throws input_error about `index`, or
// resource_error.
std::vector<Piece> cover(const std::string& index, const Tensor& tensor,
                         std::vector<Piece> pieces, CoverBudget& budget);

}  // namespace ckpt::olmo_core::v1
