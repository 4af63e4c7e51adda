// SPDX-License-Identifier: Apache-2.0
// NAME[SLICE] in NumPy's syntax: [0], [:4], [2:8,-1], [..., ::2]. Positive
// steps only; a bare number removes its dimension.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/box.h"

namespace ckpt::app {

// The indexes taken from one dimension: begin, begin + step, … `count` times.
struct Range {
  uint64_t begin = 0;
  uint64_t count = 0;
  uint64_t step = 1;
  bool single = false;  // a bare number
};

// Parses `text`, the part between the brackets, into a Range for each dimension
// of `shape`. Throws usage_error naming `name`.
std::vector<Range> parse_slice(std::string_view text, const Shape& shape,
                               const std::string& name);

}  // namespace ckpt::app
