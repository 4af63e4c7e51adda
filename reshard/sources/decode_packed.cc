// SPDX-License-Identifier: Apache-2.0
// Codes of one to eight bits in a row of bytes, scales that are scaled
// themselves, and zeros that are packed or added (Coding::kPacked).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ckpt/error.h"
#include "reshard/numbers/cast_kernel.h"
#include "reshard/sources/decode.h"
#include "reshard/sources/decode_kernel.h"

namespace ckpt::reshard {
namespace {

// The code of `bits` bits that begins at bit `at`, lowest bits first.
uint32_t code_at(const std::byte* bytes, uint64_t at, uint32_t bits) {
  const auto in = static_cast<uint32_t>(at % 8);
  const std::byte* from = bytes + at / 8;
  auto window = static_cast<uint32_t>(from[0]);
  if (in + bits > 8) window |= static_cast<uint32_t>(from[1]) << 8;
  return window >> in & ((1U << bits) - 1);
}

float number_of(const Decoding& made, uint32_t code) {
  return made.table ? (*made.table)[code] : static_cast<float>(code);
}

}  // namespace

void DecodeReader::find_pairs(const Decoding& made) {
  if (pairs_of_ == &made) return;
  pairs_.resize(512);
  for (uint32_t byte = 0; byte < 256; ++byte) {
    pairs_[2 * byte + (made.high_first ? 1 : 0)] = number_of(made, byte & 15);
    pairs_[2 * byte + (made.high_first ? 0 : 1)] = number_of(made, byte >> 4);
  }
  pairs_of_ = &made;
}

// Writes the columns of a tile to line_ as numbers that no scale has changed.
// `row` is the byte that has the first bit of the first column.
void DecodeReader::packed_line(const Decoding& made, const Tile& tile,
                               const std::byte* row) {
  float* out = line_.data();
  if (made.bits != 4) {
    const uint64_t first = tile.column * made.bits % 8;
    for (uint64_t i = 0; i < tile.columns; ++i)
      out[i] = number_of(made, code_at(row, first + i * made.bits, made.bits));
    return;
  }
  find_pairs(made);
  uint64_t left = tile.columns;
  if (tile.column % 2 && left > 0) {
    *out++ = pairs_[2 * static_cast<uint64_t>(*row++) + 1];
    --left;
  }
  for (; left >= 2; left -= 2, out += 2)
    std::memcpy(out, &pairs_[2 * static_cast<uint64_t>(*row++)],
                2 * sizeof(float));
  if (left) *out = pairs_[2 * static_cast<uint64_t>(*row)];
}

// Scales of a box, from what is stored to numbers.
void DecodeReader::scale_scales(const Decoding& made, const Tile& wanted) {
  const uint64_t width = made.scales.shape[2];
  const auto place = [&](uint64_t i) {
    return (wanted.row + i / wanted.columns) * width + wanted.column +
           i % wanted.columns;
  };
  uint64_t first = 0, count = 1, batch = 0;
  if (made.outer_block != 0) {
    first = place(0) / made.outer_block;
    count = place(scales_.size() - 1) / made.outer_block - first + 1;
  } else {
    batch = made.outer.shape[0] == 1 ? 0 : wanted.batch;
  }
  numbers(made, made.outer, {batch, 0, 1, first, count}, outer_);
  for (uint64_t i = 0; i < scales_.size(); ++i) {
    const float outer =
        outer_[made.outer_block ? place(i) / made.outer_block - first : 0];
    float& scale = scales_[i];
    if (made.scale_table)
      scale = (*made.scale_table)[static_cast<size_t>(scale)];
    scale = made.outer_divides ? scale / outer : scale * outer;
    if (made.outer_offset != 0) scale += made.outer_offset;
    if (!std::isfinite(scale))
      throw input_error(
          {made.files->at(made.outer.pieces.front().extent.file).path,
           made.outer.name},
          "the scale at {} of {} is {}", place(i), made.scales.name, scale)
          .with_hint("the numbers of " + made.name + " can't be told from it");
  }
}

// Zeros [rows, groups] in words along the rows: word w of a column has the bits
// 32 w to 32 w + 31 of what that column's zeros are one after the other.
void DecodeReader::load_packed_zeros(const Decoding& made, const Tile& wanted,
                                     uint64_t first, uint64_t rows) {
  const uint64_t word = first * made.bits / 32;
  const uint64_t words = ((first + rows) * made.bits + 31) / 32 - word;
  std::vector<std::byte> stored(words * wanted.columns * 4);
  box(made, made.zeros,
      {wanted.batch, word, words, wanted.column, wanted.columns},
      stored.data());
  std::vector<std::byte> column(words * 4);
  zeros_.resize(rows * wanted.columns);
  for (uint64_t c = 0; c < wanted.columns; ++c) {
    for (uint64_t w = 0; w < words; ++w)
      std::memcpy(&column[4 * w], &stored[4 * (w * wanted.columns + c)], 4);
    for (uint64_t r = 0; r < rows; ++r)
      zeros_[r * wanted.columns + c] = number_of(
          made, code_at(column.data(), (first + r) * made.bits - word * 32,
                        made.bits));
  }
}

void DecodeReader::round_line(const Decoding& made, uint64_t count) {
  if (!made.rounds || *made.rounds == DType::f32) return;
  auto* line = reinterpret_cast<std::byte*>(line_.data());
  rounded_.resize(count * element_size(*made.rounds));
  best_cast_kernel().narrow(DType::f32, *made.rounds)(line, rounded_.data(),
                                                      count);
  best_cast_kernel().widen (*made.rounds)(rounded_.data(), line, count);
}

void DecodeReader::add_zeros(const Decoding& made, const Tile& tile,
                             uint64_t row) {
  const float* zeros =
      zeros_.data() +
      ((tile.row + row) / made.block_rows - scale_row_) * scale_columns_;
  for (uint64_t c = 0; c < tile.columns;) {
    const uint64_t block = (tile.column + c) / made.block_columns;
    const uint64_t end =
        std::min(tile.columns, (block + 1) * made.block_columns - tile.column);
    best_decode_kernel().scale(line_.data() + c, -zeros[block - scale_column_],
                               1, end - c);
    c = end;
  }
}

}  // namespace ckpt::reshard
