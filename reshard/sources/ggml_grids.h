// SPDX-License-Identifier: Apache-2.0
// The points that the codes of ggml's IQ types stand for: some of the 3^8 or
// 8^4 that are possible, in ascending order with the last coordinate as the
// leading digit. A bit for each says whether it is one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ckpt::reshard {

// The coordinates of each point.
template <size_t Points, size_t Width>
using GgmlGrid = std::array<std::array<int8_t, Width>, Points>;

const GgmlGrid<256, 8>& iq2_xxs_grid();
const GgmlGrid<512, 8>& iq2_xs_grid();
const GgmlGrid<1024, 8>& iq2_s_grid();
const GgmlGrid<2048, 8>& iq1_grid();
const GgmlGrid<256, 4>& iq3_xxs_grid();
const GgmlGrid<512, 4>& iq3_s_grid();

}  // namespace ckpt::reshard
