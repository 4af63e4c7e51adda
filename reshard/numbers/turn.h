// SPDX-License-Identifier: Apache-2.0
// Transposes small matrices of elements of 2 or 4 bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ckpt::reshard {

// `in`: rows of `columns` elements without gaps. Element (r, c) goes to
// out + r * by_row + c * by_column.
void turn(uint64_t element, const std::byte* in, uint64_t rows,
          uint64_t columns, std::byte* out, uint64_t by_row,
          uint64_t by_column);

}  // namespace ckpt::reshard
