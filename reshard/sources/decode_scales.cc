// SPDX-License-Identifier: Apache-2.0
// What a tile needs besides its codes: scales, zeros and groups, and the boxes
// of stored tensors from which all are read.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "ckpt/error.h"
#include "reshard/numbers/cast_kernel.h"
#include "reshard/numbers/transform.h"
#include "reshard/sources/decode.h"
#include "reshard/sources/decode_kernel.h"
#include "reshard/sources/sources.h"

namespace ckpt::reshard {
namespace {

uint64_t blocks(uint64_t count, uint64_t by) { return (count + by - 1) / by; }

uint32_t word_at(std::span<const std::byte> bytes, uint64_t index) {
  uint32_t word;
  std::memcpy(&word, bytes.data() + 4 * index, 4);
  return word;
}

// True for a power of two whose product with any e2m1 is a normal bf16.
bool is_plain_power(float scale) {
  const auto bits = std::bit_cast<uint32_t>(scale);
  return (bits & 0x7FFFFF) == 0 && bits >> 23 >= 2 && bits >> 23 <= 252;
}

}  // namespace

uint64_t DecodeReader::group_of(const Decoding& made, uint64_t row) const {
  if (made.order.shape.empty()) return row / made.block_rows;
  return static_cast<uint64_t>(order_[row - order_row_]);
}

void DecodeReader::load_scales(const Decoding& made, const Tile& tile) {
  scale_row_ = tile.row / made.block_rows;
  scale_column_ = tile.column / made.block_columns;
  scale_columns_ =
      blocks(tile.column + tile.columns, made.block_columns) - scale_column_;
  const Tile wanted{made.scales.shape[0] == 1 ? 0 : tile.batch, scale_row_,
                    blocks(tile.row + tile.rows, made.block_rows) - scale_row_,
                    scale_column_, scale_columns_};
  numbers(made, made.scales, wanted, scales_);
  if (!made.outer.name.empty()) scale_scales(made, wanted);
  has_zero_scale_ = std::ranges::find(scales_, 0.0F) != scales_.end();
  plain_powers_ = made.coding == Coding::kE2m1 && made.zeros.shape.empty() &&
                  std::ranges::all_of(scales_, is_plain_power);
  zeros_.clear();
  if (made.packed_zeros)
    load_packed_zeros(made, wanted, scale_row_, wanted.rows);
  else if (!made.zeros.shape.empty())
    numbers(made, made.zeros, wanted, zeros_);
}

void DecodeReader::load_order(const Decoding& made, const Tile& tile) {
  order_row_ = tile.row;
  order_.resize(tile.rows);
  box(made, made.order, {0, 0, 1, tile.row, tile.rows},
      reinterpret_cast<std::byte*>(order_.data()));
  const auto groups = made.scales.shape[1];
  for (uint64_t i = 0; i < order_.size(); ++i)
    if (order_[i] < 0 || static_cast<uint64_t>(order_[i]) >= groups)
      throw input_error(
          {made.files->at(made.order.pieces.front().extent.file).path,
           made.order.name},
          "row {} is of group {}, and there are {}", tile.row + i, order_[i],
          groups);
}

// Loads the scales and zeros, in the tile's columns, of each group that its
// rows belong to.
void DecodeReader::load_groups(const Decoding& made, const Tile& tile) {
  uint64_t end = 0;
  if (made.order.shape.empty()) {
    scale_row_ = tile.row / made.block_rows;
    end = blocks(tile.row + tile.rows, made.block_rows);
  } else {
    load_order(made, tile);
    const auto [least, most] = std::ranges::minmax(order_);
    scale_row_ = static_cast<uint64_t>(least);
    end = static_cast<uint64_t>(most) + 1;
  }
  scale_column_ = tile.column;
  scale_columns_ = tile.columns;
  const uint64_t groups = end - scale_row_;
  numbers(made, made.scales, {0, scale_row_, groups, tile.column, tile.columns},
          scales_);
  const uint64_t per = 32 / made.bits;
  const uint32_t mask = (1U << made.bits) - 1;
  const uint64_t first = tile.column / per;
  const uint64_t words = blocks(tile.column + tile.columns, per) - first;
  std::vector<std::byte> packed(groups * words * 4);
  box(made, made.zeros, {0, scale_row_, groups, first, words}, packed.data());
  zeros_.resize(groups * tile.columns);
  constexpr uint32_t kAwqPlace[] = {0, 4, 1, 5, 2, 6, 3, 7};
  for (uint64_t g = 0; g < groups; ++g)
    for (uint64_t c = 0; c < tile.columns; ++c) {
      const uint64_t column = tile.column + c;
      const uint32_t word = word_at(packed, g * words + column / per - first);
      auto place = static_cast<uint32_t>(column % per);
      if (made.coding == Coding::kAwq) place = kAwqPlace[place];
      const uint32_t zero =
          (((word >> (place * made.bits)) & mask) + made.zero_offset) & mask;
      zeros_[g * tile.columns + c] = static_cast<float>(zero);
    }
}

// Reads a box of a tensor as f32. Scales of type u8 are exponents, e8m0.
void DecodeReader::floats(const Decoding& made, const Tensor& tensor,
                          const Tile& tile, std::vector<float>& out) {
  const uint64_t count = tile.rows * tile.columns;
  std::vector<std::byte>& stored = stored_;
  stored.resize(count * element_size(tensor.dtype));
  box(made, tensor, tile, stored.data());
  out.resize(count);
  auto* to = reinterpret_cast<std::byte*>(out.data());
  DType dtype = tensor.dtype;
  if (dtype == DType::u8 && &tensor == &made.scales && !made.scale_table)
    dtype = DType::f8_e8m0;
  if (dtype == DType::f32)
    std::memcpy(to, stored.data(), count * sizeof(float));
  else if (dtype == DType::i8)
    best_decode_kernel().from_i8(stored.data(), out.data(), count);
  else if (dtype == DType::u8)
    best_decode_kernel().from_u8(stored.data(), out.data(), count);
  else
    best_cast_kernel().cast(dtype, DType::f32, stored.data(), to, count);
}

// The same for scales and zeros, which must be finite.
void DecodeReader::numbers(const Decoding& made, const Tensor& tensor,
                           const Tile& tile, std::vector<float>& out) {
  floats(made, tensor, tile, out);
  for (uint64_t i = 0; i < out.size(); ++i)
    if (!std::isfinite(out[i]))
      throw input_error(
          {made.files->at(tensor.pieces.front().extent.file).path, tensor.name},
          "the scale at [{}, {}] is {}", tile.row + i / tile.columns,
          tile.column + i % tile.columns, out[i])
          .with_hint("the numbers of " + made.name + " can't be told from it");
}

// Rows of `row` bytes of a piece, to rows that are `width` bytes apart.
void DecodeReader::read_part(const Decoding& made, const Piece& part,
                             const Rows& rows, std::byte* to, uint64_t width) {
  constexpr uint64_t kBounce = 256 << 10;
  const Dims& strides = part.extent.strides;
  SourceReader& source = reader(made);
  const uint32_t file = part.extent.file;
  if (strides[2] != rows.element && rows.row != rows.element)
    return gather_part(made, part, rows, to, width);
  if (strides[1] == rows.row && width == rows.row) {
    source.read(file, rows.from, {to, rows.count * rows.row});
    return;
  }
  const uint64_t once =
      strides[1] <= 4 * rows.row + 512 && strides[1] >= rows.row
          ? kBounce / strides[1]
          : 0;
  if (once < 2) {
    for (uint64_t r = 0; r < rows.count; ++r)
      source.read(file, rows.from + r * strides[1], {to + r * width, rows.row});
    return;
  }
  bounce_.resize(kBounce);
  for (uint64_t r = 0; r < rows.count; r += once) {
    const uint64_t few = std::min(once, rows.count - r);
    source.read(file, rows.from + r * strides[1],
                {bounce_.data(), (few - 1) * strides[1] + rows.row});
    for (uint64_t i = 0; i < few; ++i)
      std::memcpy(to + (r + i) * width, bounce_.data() + i * strides[1],
                  rows.row);
  }
}

// The same where the elements of a row stand apart: column by column, each of
// which is read with what is between its elements if that is little.
void DecodeReader::gather_part(const Decoding& made, const Piece& part,
                               const Rows& rows, std::byte* to,
                               uint64_t width) {
  constexpr uint64_t kGap = 512, kMost = 1 << 20;
  const uint64_t apart = part.extent.strides[1];
  SourceReader& source = reader(made);
  for (uint64_t c = 0; c < rows.row / rows.element; ++c) {
    const uint64_t from = rows.from + c * part.extent.strides[2];
    std::byte* const column = to + c * rows.element;
    const uint64_t once =
        apart <= kGap ? kMost / std::max<uint64_t>(apart, 1) : 1;
    for (uint64_t r = 0; r < rows.count; r += once) {
      const uint64_t few = std::min(once, rows.count - r);
      bounce_.resize((few - 1) * apart + rows.element);
      source.read(part.extent.file, from + r * apart, bounce_);
      for (uint64_t i = 0; i < few; ++i)
        std::memcpy(column + (r + i) * width, bounce_.data() + i * apart,
                    rows.element);
    }
  }
}

void DecodeReader::box(const Decoding& made, const Tensor& tensor,
                       const Tile& tile, std::byte* out) {
  uint64_t covered = 0;
  for (const Piece& part : tensor.pieces) {
    const Dims& at = part.box.offset;
    const Dims& size = part.box.shape;
    if (tile.batch < at[0] || tile.batch >= at[0] + size[0]) continue;
    Tile both = tile;
    both.row = std::max(tile.row, at[1]);
    both.column = std::max(tile.column, at[2]);
    const uint64_t row_end = std::min(tile.row + tile.rows, at[1] + size[1]);
    const uint64_t end = std::min(tile.column + tile.columns, at[2] + size[2]);
    if (both.row >= row_end || both.column >= end) continue;
    both.rows = row_end - both.row;
    both.columns = end - both.column;
    const uint64_t element = element_size(tensor.dtype);
    const uint64_t width = tile.columns * element;
    std::byte* to = out + (both.row - tile.row) * width +
                    (both.column - tile.column) * element;
    covered += both.rows * both.columns;
    const Dims& strides = part.extent.strides;
    const uint64_t seg = both.columns * element;
    const uint64_t from =
        part.extent.offset + (tile.batch - at[0]) * strides[0] +
        (both.row - at[1]) * strides[1] + (both.column - at[2]) * strides[2];
    read_part(made, part, {both.rows, seg, from, element}, to, width);
    if (part.transform != kNoTransform)
      for (uint64_t r = 0; r < both.rows; ++r)
        apply_transform(part.transform, tensor.dtype, {to + r * width, seg});
  }
  if (covered < tile.rows * tile.columns)
    throw bug_error({{}, tensor.name}, "pieces of a quantized weight lack");
}

}  // namespace ckpt::reshard
