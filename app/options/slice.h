// SPDX-License-Identifier: Apache-2.0
// NAME[SLICE] as NumPy has it: [0], [:4], [2:8,-1], [..., ::2]. Steps forward
// only; a bare number takes its dimension away.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/box.h"

namespace ckpt::app {

// What is taken of one dimension: begin, begin + step, … `count` times.
struct Range {
  uint64_t begin = 0;
  uint64_t count = 0;
  uint64_t step = 1;
  bool single = false;  // a bare number
};

// `text` is what stands between the brackets. A Range for each dimension of
// `shape`. Throws a usage_error that names `name`.
std::vector<Range> parse_slice(std::string_view text, const Shape& shape,
                               const std::string& name);

}  // namespace ckpt::app
