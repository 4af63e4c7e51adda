// SPDX-License-Identifier: Apache-2.0
#include "reshard/numbers/turn.h"

#include <cstring>

#include "reshard/numbers/lanes.h"

namespace ckpt::reshard {
namespace {

template <size_t kElement>
void one_by_one(const std::byte* in, uint64_t begin_row, uint64_t rows,
                uint64_t begin, uint64_t columns, uint64_t width,
                std::byte* out, uint64_t by_row, uint64_t by_column) {
  for (uint64_t c = begin; c < columns; ++c)
    for (uint64_t r = begin_row; r < rows; ++r)
      std::memcpy(out + c * by_column + r * by_row,
                  in + (r * width + c) * kElement, kElement);
}

#ifdef CKPT_LANES
using namespace lanes;

// 8 rows of 8 elements of 2 bytes: three rounds of interleaving.
void turn_8x8(const std::byte* in, uint64_t in_row, std::byte* out,
              uint64_t out_row) {
  Vector a[8];
  Vector b[8];
  for (int i = 0; i < 8; ++i)
    a[i] = load(in + static_cast<uint64_t>(i) * in_row);
  for (int i = 0; i < 4; ++i) {
    b[2 * i] = zip_low<2>(a[2 * i], a[2 * i + 1]);
    b[2 * i + 1] = zip_high<2>(a[2 * i], a[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i)
    for (int k = 0; k < 2; ++k) {
      a[4 * i + 2 * k] = zip_low<4>(b[4 * i + k], b[4 * i + k + 2]);
      a[4 * i + 2 * k + 1] = zip_high<4>(b[4 * i + k], b[4 * i + k + 2]);
    }
  for (int i = 0; i < 4; ++i) {
    store(out + static_cast<uint64_t>(2 * i) * out_row,
          zip_low<8>(a[i], a[i + 4]));
    store(out + static_cast<uint64_t>(2 * i + 1) * out_row,
          zip_high<8>(a[i], a[i + 4]));
  }
}

// 4 rows of 4 elements of 4 bytes.
void turn_4x4(const std::byte* in, uint64_t in_row, std::byte* out,
              uint64_t out_row) {
  Vector rows[4];
  for (uint64_t i = 0; i < 4; ++i) rows[i] = load(in + i * in_row);
  turn_words(rows);
  for (uint64_t i = 0; i < 4; ++i) store(out + i * out_row, rows[i]);
}
#endif

template <size_t kElement>
void turn_all(const std::byte* in, uint64_t rows, uint64_t columns,
              std::byte* out, uint64_t by_row, uint64_t by_column) {
  uint64_t whole_rows = 0;
  uint64_t whole = 0;
#ifdef CKPT_LANES
  constexpr uint64_t kSide = 16 / kElement;
  if (by_row == kElement) {
    whole_rows = rows / kSide * kSide;
    whole = columns / kSide * kSide;
    for (uint64_t c = 0; c < whole; c += kSide)
      for (uint64_t r = 0; r < whole_rows; r += kSide)
        (kElement == 2 ? turn_8x8 : turn_4x4)(
            in + (r * columns + c) * kElement, columns * kElement,
            out + c * by_column + r * by_row, by_column);
  }
#endif
  one_by_one<kElement>(in, whole_rows, rows, 0, whole, columns, out, by_row,
                       by_column);
  one_by_one<kElement>(in, 0, rows, whole, columns, columns, out, by_row,
                       by_column);
}

}  // namespace

void turn(uint64_t element, const std::byte* in, uint64_t rows,
          uint64_t columns, std::byte* out, uint64_t by_row,
          uint64_t by_column) {
  (element == 2 ? turn_all<2> : turn_all<4>)(in, rows, columns, out, by_row,
                                             by_column);
}

}  // namespace ckpt::reshard
