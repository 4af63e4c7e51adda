// SPDX-License-Identifier: Apache-2.0
// FSDP1's flat parameters: each rank's slice of a parameter.
//
//   unit: | p0 | pad | p1 | p2 | pad | p3 | pad |      one layer, or the rest
//         |   rank 0   |   rank 1   |   rank 2   |     equal parts
//
// Each parameter begins at a multiple of 16 bytes; the end is padded so that
// the unit divides evenly among the ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::fairseq2 {

// What fairseq2 wraps: each layer, each stack of layers, or the whole model.
enum class Granularity : uint8_t { kLayer, kStack, kModel };
std::string_view name(Granularity granularity);

struct FlatParameter {
  std::string name;
  uint64_t elements = 0;  // of the tp-local tensor
  uint64_t itemsize = 0;
};

// slices[i][rank]: the elements of parameter i that a rank holds; empty
// ranges for none. `parameters` are in the model's order.
std::vector<std::vector<FlatRange>> flat_slices(
    const std::vector<FlatParameter>& parameters, uint32_t ranks,
    Granularity granularity);

}  // namespace ckpt::fairseq2
