// SPDX-License-Identifier: Apache-2.0
// Numbers to fp8 in blocks of 128x128, as DeepGEMM's cast by blocks does it:
//
//   amax = max(|x| of the block, 1e-4)      all in f32
//   code = e4m3(x * (1 / amax * 448))       scale = amax / 448
//
// The quotient is what PyTorch makes of 448.0 / amax: a reciprocal first.
// A row of blocks is read twice: once for its largest, once to be cast.
#include <algorithm>
#include <bit>
#include <cstring>

#include "ckpt/error.h"
#include "reshard/cast_kernel.h"
#include "reshard/decode.h"
#include "reshard/decode_kernel.h"

namespace ckpt::reshard {
namespace {

constexpr float kMostE4m3 = 448.0F;
constexpr float kLeastAmax = 1e-4F;
constexpr uint64_t kRowsAtOnce = 128 << 10;  // elements

uint64_t parts(uint64_t count, uint64_t by) { return (count + by - 1) / by; }

}  // namespace

// largest_: of each block in that row of blocks.
void DecodeReader::find_blocks(const Decoding& made, uint64_t batch,
                               uint64_t block_row) {
  if (blocks_of_ == &made && blocks_batch_ == batch && blocks_row_ == block_row)
    return;
  blocks_of_ = nullptr;
  const uint64_t blocks = parts(made.columns, made.block_columns);
  std::vector<uint32_t> bits(blocks, 0);
  const uint64_t end = std::min(made.rows, (block_row + 1) * made.block_rows);
  const uint64_t step = std::max<uint64_t>(1, kRowsAtOnce / made.columns);
  for (uint64_t row = block_row * made.block_rows; row < end; row += step) {
    const uint64_t rows = std::min(step, end - row);
    floats(made, made.codes, {batch, row, rows, 0, made.columns}, line_);
    for (uint64_t r = 0; r < rows; ++r)
      for (uint64_t b = 0; b < blocks; ++b) {
        const uint64_t column = b * made.block_columns;
        bits[b] = std::max(
            bits[b], best_decode_kernel().largest(
                         line_.data() + r * made.columns + column,
                         std::min(made.block_columns, made.columns - column)));
      }
  }
  largest_.resize(blocks);
  for (uint64_t b = 0; b < blocks; ++b) {
    const auto most = std::bit_cast<float>(bits[b]);
    if (bits[b] >= 0x7F800000)
      throw input_error(
          {made.files->at(made.codes.pieces.front().extent.file).path,
           made.name},
          "the block at [{}, {}] has a number that is not finite",
          block_row * made.block_rows, b * made.block_columns)
          .with_hint(
              "`ckpt inspect --stats` counts them; fp8 has no room for "
              "them");
    largest_[b] = std::max(most, kLeastAmax);
  }
  blocks_of_ = &made;
  blocks_batch_ = batch;
  blocks_row_ = block_row;
}

// A tile of one row of blocks.
void DecodeReader::make_codes(const Decoding& made, const Tile& tile,
                              std::byte* out) {
  find_blocks(made, tile.batch, tile.row / made.block_rows);
  floats(made, made.codes, tile, line_);
  for (uint64_t r = 0; r < tile.rows; ++r)
    for (uint64_t c = 0; c < tile.columns;) {
      const uint64_t block = (tile.column + c) / made.block_columns;
      const uint64_t end = std::min(
          tile.columns, (block + 1) * made.block_columns - tile.column);
      best_decode_kernel().scale(line_.data() + r * tile.columns + c, 0,
                                 1 / largest_[block] * kMostE4m3, end - c);
      c = end;
    }
  best_cast_kernel().narrow(DType::f32, DType::f8_e4m3)(
      reinterpret_cast<const std::byte*>(line_.data()), out,
      tile.rows * tile.columns);
}

void DecodeReader::read_fp8(const Decoding& made, uint64_t first,
                            uint64_t count, std::byte* out) {
  const bool scales = made.coding == Coding::kFp8Scales;
  const uint64_t width =
      scales ? parts(made.columns, made.block_columns) : made.columns;
  const uint64_t height =
      scales ? parts(made.rows, made.block_rows) : made.rows;
  while (count > 0) {
    const uint64_t batch = first / (width * height);
    const uint64_t row = first / width % height;
    const uint64_t column = first % width;
    uint64_t take = std::min(count, width - column);
    if (scales) {
      find_blocks(made, batch, row);
      for (uint64_t i = 0; i < take; ++i) {
        const float scale = largest_[column + i] / kMostE4m3;
        std::memcpy(out + i * sizeof scale, &scale, sizeof scale);
      }
      out += take * sizeof(float);
    } else {
      uint64_t rows = 1;
      if (take == width)
        rows = std::min({count / width, made.block_rows - row % made.block_rows,
                         std::max<uint64_t>(1, kRowsAtOnce / width),
                         height - row});
      make_codes(made, {batch, row, rows, column, take}, out);
      take *= rows;
      out += take;
    }
    first += take;
    count -= take;
  }
}

}  // namespace ckpt::reshard
