// SPDX-License-Identifier: Apache-2.0
// From stored codes to numbers: a line of f32, or 32 rows by table lookup.
#include <algorithm>
#include <bit>
#include <cstring>

#include "ckpt/error.h"
#include "reshard/numbers/cast_kernel.h"
#include "reshard/numbers/turn.h"
#include "reshard/sources/decode.h"
#include "reshard/sources/decode_kernel.h"
#include "reshard/sources/decode_turned.h"

namespace ckpt::reshard {
namespace {

uint64_t halves(uint64_t count, uint64_t by) { return (count + by - 1) / by; }

}  // namespace

// Writes row `row` of a tile to line_ as numbers.
void DecodeReader::line(const Decoding& made, const Tile& tile, uint64_t row,
                        const Codes& codes) {
  const DecodeKernel& kernel = best_decode_kernel();
  const uint64_t per = 32 / made.bits;
  const uint64_t natural = tile.row + row;
  if (made.coding == Coding::kScaled)
    return scaled_line(made, tile, row, codes.at + row * codes.stride);
  if (made.coding == Coding::kE2m1) {
    const uint64_t skip = tile.column % 2;
    const uint64_t bytes = halves(tile.columns + skip, 2);
    kernel.from_e2m1(codes.at + row * codes.stride, line_.data(), 2 * bytes);
    if (skip) std::memmove(line_.data(), line_.data() + 1, tile.columns * 4);
    return scaled_line(made, tile, row, nullptr);
  }
  if (made.coding == Coding::kPacked) {
    packed_line(made, tile, codes.at + row * codes.stride);
    scaled_line(made, tile, row, nullptr);
    if (made.adds_zeros) add_zeros(made, tile, row);
    return;
  }
  if (made.coding == Coding::kGptq) {
    const uint64_t word_row = natural / per - tile.row / per;
    const auto shift = static_cast<uint32_t>(natural % per * made.bits);
    const auto* words =
        reinterpret_cast<const uint32_t*>(codes.at + word_row * codes.stride);
    kernel.from_words(words, shift, (1U << made.bits) - 1, line_.data(),
                      tile.columns);
  } else {
    const uint64_t skip = tile.column % 8;
    const uint64_t words = halves(tile.columns + skip, 8);
    kernel.from_awq(
        reinterpret_cast<const uint32_t*>(codes.at + row * codes.stride),
        line_.data(), words);
    if (skip) std::memmove(line_.data(), line_.data() + skip, tile.columns * 4);
  }
  const uint64_t group = group_of(made, natural) - scale_row_;
  const uint64_t at = group * scale_columns_ + tile.column - scale_column_;
  kernel.scale_each(line_.data(), zeros_.data() + at, scales_.data() + at,
                    tile.columns);
}

// If the codes are null, line_ has them as numbers.
void DecodeReader::scaled_line(const Decoding& made, const Tile& tile,
                               uint64_t row, const std::byte* codes) {
  const DecodeKernel& kernel = best_decode_kernel();
  if (codes) {
    if (made.codes.dtype == DType::i8)
      kernel.from_i8(codes, line_.data(), tile.columns);
    else if (made.codes.dtype == DType::u8)
      kernel.from_u8(codes, line_.data(), tile.columns);
    else
      best_cast_kernel().widen(made.codes.dtype)(
          codes, reinterpret_cast<std::byte*>(line_.data()), tile.columns);
  }
  const uint64_t scale_row = (tile.row + row) / made.block_rows - scale_row_;
  const float* scales = scales_.data() + scale_row * scale_columns_;
  const float* zeros = zeros_.empty() || made.adds_zeros
                           ? nullptr
                           : zeros_.data() + scale_row * scale_columns_;
  for (uint64_t c = 0; c < tile.columns;) {
    const uint64_t block = (tile.column + c) / made.block_columns;
    const uint64_t end =
        std::min(tile.columns, (block + 1) * made.block_columns - tile.column);
    const uint64_t s = block - scale_column_;
    if (has_zero_scale_ && scales[s] == 0 && codes)
      check_zero(made, tile, row, c, codes + c, end - c);
    kernel.scale(line_.data() + c, zeros ? zeros[s] : 0, scales[s], end - c);
    c = end;
  }
}

void DecodeReader::check_zero(const Decoding& made, const Tile& tile,
                              uint64_t row, uint64_t column,
                              const std::byte* codes, uint64_t count) {
  const auto mask =
      made.codes.dtype == DType::i8 || made.codes.dtype == DType::u8
          ? std::byte{0xff}
          : std::byte{0x7f};
  for (uint64_t i = 0; i < count; ++i)
    if ((codes[i] & mask) != std::byte{0})
      throw input_error(
          {made.files->at(made.scales.pieces.front().extent.file).path,
           made.scales.name},
          "the scale of element [{}, {}] of {} is 0, and its code is not",
          tile.row + row, tile.column + column + i, made.name)
          .with_hint("what the weight was can't be told from it");
}

// Makes 32 rows of a transposed weight if their codes can be looked up. If not,
// makes nothing and returns false.
bool DecodeReader::make_turned(const Decoding& made, const Tile& strip,
                               uint64_t row, uint64_t rows, const Codes& stored,
                               const Place& place) {
  const TurnedKernel* kernel = turned_kernel();
  if (!kernel || rows != kTurnedRows || place.by_row != 2 ||
      element_size(made.dtype) != 2 || place.by_column == 2 || made.bits != 4)
    return false;
  const uint64_t natural = strip.row + row;
  Turned part{stored.at, stored.stride, strip.columns, place.at,
              place.by_column};
  switch (made.coding) {
    case Coding::kE2m1:
      if (made.dtype != DType::bf16 || !plain_powers_ || made.block_rows != 1 ||
          made.block_columns != 32 || strip.column % 32 != 0 ||
          strip.columns % 32 != 0)
        return false;
      part.codes += row * stored.stride;
      find_powers(strip, row);
      kernel->e2m1(part, powers_.data());
      return true;
    case Coding::kGptq:
      if (natural % 8 != 0 || strip.columns % 4 != 0 ||
          !one_group(made, natural, rows))
        return false;
      part.codes += (natural / 8 - strip.row / 8) * stored.stride;
      find_tables(made, strip, natural, *kernel);
      kernel->gptq(part, tables_.data());
      return true;
    case Coding::kAwq:
      if (strip.column % 8 != 0 || strip.columns % 32 != 0 ||
          !one_group(made, natural, rows))
        return false;
      part.codes += row * stored.stride;
      find_tables(made, strip, natural, *kernel);
      kernel->awq(part, tables_.data());
      return true;
    default:
      return false;
  }
}

bool DecodeReader::one_group(const Decoding& made, uint64_t row,
                             uint64_t rows) const {
  const uint64_t group = group_of(made, row);
  for (uint64_t i = 1; i < rows; ++i)
    if (group_of(made, row + i) != group) return false;
  return true;
}

// Sets powers_: for each 32 columns of a strip, those of 32 rows.
void DecodeReader::find_powers(const Tile& strip, uint64_t row) {
  const uint64_t groups = strip.columns / 32;
  powers_.resize(groups * kTurnedRows);
  const uint64_t column = strip.column / 32 - scale_column_;
  for (uint64_t r = 0; r < kTurnedRows; ++r) {
    const float* scales = scales_.data() +
                          (strip.row + row + r - scale_row_) * scale_columns_ +
                          column;
    for (uint64_t g = 0; g < groups; ++g) {
      const auto exponent =
          static_cast<int32_t>(std::bit_cast<uint32_t>(scales[g]) >> 23);
      powers_[g * kTurnedRows + r] =
          static_cast<int16_t>((exponent - 127) * 128);
    }
  }
}

// Sets tables_: what each code of a column means in a row's group.
void DecodeReader::find_tables(const Decoding& made, const Tile& strip,
                               uint64_t row, const TurnedKernel& kernel) {
  const uint64_t group = group_of(made, row);
  if (tables_of_ == &made && tables_group_ == group &&
      tables_column_ == strip.column &&
      tables_.size() == strip.columns * kTableBytes)
    return;
  tables_of_ = nullptr;
  const CastStep narrow = best_cast_kernel().narrow(DType::f32, made.dtype);
  const uint64_t at =
      (group - scale_row_) * scale_columns_ + strip.column - scale_column_;
  line_.resize(strip.columns + 16);
  narrow_.resize(16 * strip.columns * 2);
  for (uint64_t code = 0; code < 16; ++code) {
    std::fill_n(line_.begin(), strip.columns, static_cast<float>(code));
    best_decode_kernel().scale_each(line_.data(), zeros_.data() + at,
                                    scales_.data() + at, strip.columns);
    round_line(made, strip.columns);
    narrow(reinterpret_cast<const std::byte*>(line_.data()),
           narrow_.data() + code * strip.columns * 2, strip.columns);
  }
  tables_.resize(strip.columns * kTableBytes);
  turn(2, narrow_.data(), 16, strip.columns, tables_.data(), 2, kTableBytes);
  kernel.split(tables_.data(), strip.columns);
  tables_of_ = &made;
  tables_group_ = group;
  tables_column_ = strip.column;
}

}  // namespace ckpt::reshard
