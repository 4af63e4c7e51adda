// SPDX-License-Identifier: Apache-2.0
#include "reshard/decode.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "ckpt/error.h"
#include "lib/trace.h"
#include "reshard/cast_kernel.h"
#include "reshard/decode_kernel.h"
#include "reshard/sources.h"
#include "reshard/turn.h"

namespace ckpt::reshard {
namespace {

constexpr uint64_t kPanel = 2 << 20;         // bytes of a transposed panel
constexpr uint64_t kLine = 128;              // codes of 4 bits in a cache line
constexpr uint64_t kAhead = 16;              // rows of codes that are fetched
constexpr uint64_t kHeld = 4608 << 10;       // bytes of codes for some panels
constexpr uint64_t kStripCodes = 128 << 10;  // bytes of codes read at once
constexpr uint64_t kTile = 256 << 10;        // elements that share a look-up
constexpr uint64_t kWidest = 32 << 10;       // columns of a line
constexpr uint64_t kTurn = 32;               // rows that are turned together

uint64_t up(uint64_t count, uint64_t by) { return (count + by - 1) / by; }

uint32_t word_at(std::span<const std::byte> bytes, uint64_t index) {
  uint32_t word;
  std::memcpy(&word, bytes.data() + 4 * index, 4);
  return word;
}

}  // namespace

DecodeReader::DecodeReader(HandleCache& handles) : handles_(handles) {}
DecodeReader::~DecodeReader() = default;

uint64_t DecodeReader::bytes_read() const {
  return read_before_ + (reader_ ? reader_->bytes_read() : 0);
}

SourceReader& DecodeReader::reader(const Decoding& made) {
  if (files_ != made.files) {
    if (reader_) read_before_ += reader_->bytes_read();
    files_ = made.files;
    reader_ = std::make_unique<SourceReader>(*files_, handles_);
  }
  return *reader_;
}

bool DecodeReader::contains(const Tile& whole, const Tile& part) {
  return whole.batch == part.batch && whole.row <= part.row &&
         part.row + part.rows <= whole.row + whole.rows &&
         whole.column <= part.column &&
         part.column + part.columns <= whole.column + whole.columns;
}

// A tile in elements of the stored codes. Words and pairs that reach beyond it
// are whole.
DecodeReader::Tile DecodeReader::stored_tile(const Decoding& made,
                                             const Tile& tile) {
  Tile stored = tile;
  const uint64_t per = 32 / made.bits;
  const uint64_t end = tile.column + tile.columns;
  switch (made.coding) {
    case Coding::kScaled:
    case Coding::kFp8Codes:
    case Coding::kFp8Scales:
      break;
    case Coding::kE2m1:
      stored.column = tile.column / 2;
      stored.columns = up(end, 2) - stored.column;
      break;
    case Coding::kGptq:
      stored.row = tile.row / per;
      stored.rows = up(tile.row + tile.rows, per) - stored.row;
      break;
    case Coding::kAwq:
      stored.column = tile.column / per;
      stored.columns = up(end, per) - stored.column;
      break;
  }
  return stored;
}

void DecodeReader::read(const Decoding& made, uint64_t offset,
                        std::span<std::byte> buffer) {
  if (buffer.empty()) return;
  const uint64_t element = element_size(made.dtype);
  const uint64_t first = offset / element;
  const uint64_t end = up(offset + buffer.size(), element);
  if (offset % element == 0 && buffer.size() % element == 0)
    return read_elements(made, first, end - first, buffer.data());
  // Nobody cuts elements; should somebody, these are few.
  std::vector<std::byte> whole((end - first) * element);
  read_elements(made, first, end - first, whole.data());
  std::memcpy(buffer.data(), whole.data() + (offset - first * element),
              buffer.size());
}

void DecodeReader::read_elements(const Decoding& made, uint64_t first,
                                 uint64_t count, std::byte* out) {
  if (made.coding == Coding::kFp8Codes || made.coding == Coding::kFp8Scales)
    return read_fp8(made, first, count, out);
  const uint64_t element = element_size(made.dtype);
  const uint64_t matrix = made.rows * made.columns;
  const uint64_t width = made.transposed ? made.rows : made.columns;
  while (count > 0) {
    const uint64_t batch = first / matrix;
    const uint64_t row = first % matrix / width;
    const uint64_t column = first % width;
    uint64_t take = std::min(count, width - column);
    if (made.transposed) {
      read_panel(made, batch, row, column, take, out);
    } else {
      uint64_t rows = 1;
      if (take == width)
        rows = std::clamp<uint64_t>(kTile / width, 1,
                                    std::min(count / width, made.rows - row));
      make(made, {batch, row, rows, column, take},
           {out, width * element, element});
      take *= rows;
    }
    first += take;
    count -= take;
    out += take * element;
  }
}

// Part of a row of a transposed matrix: natural column `row`, natural rows
// [column, column + count). Its neighbours are wanted next, and their codes
// lie beside its own.
void DecodeReader::read_panel(const Decoding& made, uint64_t batch,
                              uint64_t row, uint64_t column, uint64_t count,
                              std::byte* out) {
  const uint64_t element = element_size(made.dtype);
  const bool there = panel_of_ == &made && panel_batch_ == batch &&
                     row >= panel_row_ && row < panel_row_ + panel_rows_ &&
                     column >= panel_column_ &&
                     column + count <= panel_column_ + panel_columns_;
  if (!there) {
    panel_of_ = nullptr;
    const bool whole = count * 2 >= made.rows;
    panel_column_ = whole ? 0 : column;
    panel_columns_ = whole ? made.rows : count;
    uint64_t most = std::max<uint64_t>(1, kPanel / (panel_columns_ * element));
    if (most > kLine) most -= most % kLine;
    panel_row_ = row / most * most;
    panel_rows_ = std::min(most, made.columns - panel_row_);
    panel_batch_ = batch;
    panel_.resize(panel_rows_ * panel_columns_ * element);
    hold(made, {batch, panel_column_, panel_columns_, panel_row_, panel_rows_});
    make(made, {batch, panel_column_, panel_columns_, panel_row_, panel_rows_},
         {panel_.data(), element, panel_columns_ * element});
    panel_of_ = &made;
  }
  std::memcpy(out,
              panel_.data() + ((row - panel_row_) * panel_columns_ + column -
                               panel_column_) *
                                  element,
              count * element);
}

// Reads the codes of a panel and of those behind it at once, and their scales:
// alone, each row has a few bytes of them.
void DecodeReader::hold(const Decoding& made, const Tile& panel) {
  if (held_of_ == &made && contains(held_tile_, panel)) return;
  held_of_ = nullptr;
  const uint64_t column_bits = panel.rows * made.bits;
  const uint64_t fit = kHeld * 8 / column_bits / kLine * kLine;
  if (fit <= panel.columns) return;
  Tile wide = panel;
  wide.columns = std::min(fit, made.columns - panel.column);
  if (wide.columns > panel.columns) load(made, wide);
  const Tile stored = stored_tile(made, wide);
  held_.resize(stored.rows * stored.columns * element_size(made.codes.dtype));
  box(made, made.codes, stored, held_.data());
  held_tile_ = wide;
  held_of_ = &made;
}

// Scales and zeros of a tile.
void DecodeReader::load(const Decoding& made, const Tile& tile) {
  if (scales_of_ == &made && contains(scales_tile_, tile)) return;
  scales_of_ = nullptr;
  if (made.coding == Coding::kGptq || made.coding == Coding::kAwq)
    load_groups(made, tile);
  else
    load_scales(made, tile);
  scales_tile_ = tile;
  scales_of_ = &made;
}

void DecodeReader::make(const Decoding& made, const Tile& tile,
                        const Place& place) {
  if (tile.columns > kWidest) {
    for (uint64_t c = 0; c < tile.columns; c += kWidest)
      make(made,
           {tile.batch, tile.row, tile.rows, tile.column + c,
            std::min(kWidest, tile.columns - c)},
           {place.at + c * place.by_column, place.by_row, place.by_column});
    return;
  }
  load(made, tile);
  const uint64_t element = element_size(made.dtype);
  const CastStep narrow = best_cast_kernel().narrow(DType::f32, made.dtype);
  const bool turns = place.by_column != element;
  const uint64_t row_bits = tile.columns * made.bits;
  const uint64_t step =
      std::clamp<uint64_t>(kStripCodes * 8 / row_bits / 32 * 32, 32, 1 << 16);
  line_.resize(tile.columns + 16);
  narrow_.resize(turns ? kTurn * tile.columns * element : 0);
  for (uint64_t begin = 0; begin < tile.rows;) {
    // Whole words of codes, whatever row a tile begins with.
    const uint64_t rows =
        std::min(step - (tile.row + begin) % 32, tile.rows - begin);
    const Tile strip{tile.batch, tile.row + begin, rows, tile.column,
                     tile.columns};
    const Codes stored = codes(made, strip);
    const trace::Span span("dequantize", rows * tile.columns * element);
    for (uint64_t r = 0; r < rows; ++r) {
      // Rows that are held lie far apart, which no processor foresees.
      if (made.coding != Coding::kGptq && r + kAhead < rows)
        __builtin_prefetch(stored.at + (r + kAhead) * stored.stride);
      line(made, strip, r, stored);
      const auto* numbers = reinterpret_cast<const std::byte*>(line_.data());
      std::byte* to = turns
                          ? narrow_.data() + r % kTurn * tile.columns * element
                          : place.at + (begin + r) * place.by_row;
      if (narrow)
        narrow(numbers, to, tile.columns);
      else
        std::memcpy(to, numbers, tile.columns * element);
      if (!turns || ((r + 1) % kTurn != 0 && r + 1 != rows)) continue;
      const uint64_t turned = r % kTurn + 1;
      std::byte* at = place.at + (begin + r + 1 - turned) * place.by_row;
      turn(element, narrow_.data(), turned, tile.columns, at, place.by_row,
           place.by_column);
    }
    begin += rows;
  }
}

// The codes of whole rows of a tile.
DecodeReader::Codes DecodeReader::codes(const Decoding& made,
                                        const Tile& tile) {
  const Tile stored = stored_tile(made, tile);
  const uint64_t element = element_size(made.codes.dtype);
  if (held_of_ == &made && contains(held_tile_, tile)) {
    const Tile held = stored_tile(made, held_tile_);
    const uint64_t stride = held.columns * element;
    return {held_.data() + (stored.row - held.row) * stride +
                (stored.column - held.column) * element,
            stride};
  }
  codes_.resize(stored.rows * stored.columns * element);
  box(made, made.codes, stored, codes_.data());
  return {codes_.data(), stored.columns * element};
}

// Row `row` of a tile as numbers, to line_.
void DecodeReader::line(const Decoding& made, const Tile& tile, uint64_t row,
                        const Codes& codes) {
  const DecodeKernel& kernel = best_decode_kernel();
  const uint64_t per = 32 / made.bits;
  const uint64_t natural = tile.row + row;
  if (made.coding == Coding::kScaled)
    return scaled_line(made, tile, row, codes.at + row * codes.stride);
  if (made.coding == Coding::kE2m1) {
    const uint64_t skip = tile.column % 2;
    const uint64_t bytes = up(tile.columns + skip, 2);
    kernel.from_e2m1(codes.at + row * codes.stride, line_.data(), 2 * bytes);
    if (skip) std::memmove(line_.data(), line_.data() + 1, tile.columns * 4);
    return scaled_line(made, tile, row, nullptr);
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
    const uint64_t words = up(tile.columns + skip, 8);
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

// Codes null: line_ has them as numbers.
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
  const float* zeros =
      zeros_.empty() ? nullptr : zeros_.data() + scale_row * scale_columns_;
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

uint64_t DecodeReader::group_of(const Decoding& made, uint64_t row) const {
  if (made.order.shape.empty()) return row / made.block_rows;
  return static_cast<uint64_t>(order_[row - order_row_]);
}

void DecodeReader::load_scales(const Decoding& made, const Tile& tile) {
  scale_row_ = tile.row / made.block_rows;
  scale_column_ = tile.column / made.block_columns;
  scale_columns_ =
      up(tile.column + tile.columns, made.block_columns) - scale_column_;
  const Tile wanted{made.scales.shape[0] == 1 ? 0 : tile.batch, scale_row_,
                    up(tile.row + tile.rows, made.block_rows) - scale_row_,
                    scale_column_, scale_columns_};
  numbers(made, made.scales, wanted, scales_);
  has_zero_scale_ = std::ranges::find(scales_, 0.0F) != scales_.end();
  zeros_.clear();
  if (!made.zeros.shape.empty()) numbers(made, made.zeros, wanted, zeros_);
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

// Scales and zeros of each group that the tile's rows are of, its columns.
void DecodeReader::load_groups(const Decoding& made, const Tile& tile) {
  uint64_t end = 0;
  if (made.order.shape.empty()) {
    scale_row_ = tile.row / made.block_rows;
    end = up(tile.row + tile.rows, made.block_rows);
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
  const uint64_t words = up(tile.column + tile.columns, per) - first;
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

// A box of a tensor as f32. Scales that are u8 are exponents, e8m0.
void DecodeReader::floats(const Decoding& made, const Tensor& tensor,
                          const Tile& tile, std::vector<float>& out) {
  const uint64_t count = tile.rows * tile.columns;
  std::vector<std::byte>& stored = stored_;
  stored.resize(count * element_size(tensor.dtype));
  box(made, tensor, tile, stored.data());
  out.resize(count);
  auto* to = reinterpret_cast<std::byte*>(out.data());
  DType dtype = tensor.dtype;
  if (dtype == DType::u8 && &tensor == &made.scales) dtype = DType::f8_e8m0;
  if (dtype == DType::f32)
    std::memcpy(to, stored.data(), count * sizeof(float));
  else if (dtype == DType::i8)
    best_decode_kernel().from_i8(stored.data(), out.data(), count);
  else if (dtype == DType::u8)
    best_decode_kernel().from_u8(stored.data(), out.data(), count);
  else
    best_cast_kernel().cast(dtype, DType::f32, stored.data(), to, count);
}

// The same of scales and zeros, which are finite.
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
    SourceReader& source = reader(made);
    const uint32_t file = part.extent.file;
    if (strides[1] == seg && width == seg) {
      source.read(file, from, {to, both.rows * seg});
      continue;
    }
    constexpr uint64_t kBounce = 256 << 10;
    const uint64_t once = strides[1] <= 4 * seg + 512 && strides[1] >= seg
                              ? kBounce / strides[1]
                              : 0;
    if (once < 2) {
      for (uint64_t r = 0; r < both.rows; ++r)
        source.read(file, from + r * strides[1], {to + r * width, seg});
      continue;
    }
    bounce_.resize(kBounce);
    for (uint64_t r = 0; r < both.rows; r += once) {
      const uint64_t rows = std::min(once, both.rows - r);
      source.read(file, from + r * strides[1],
                  {bounce_.data(), (rows - 1) * strides[1] + seg});
      for (uint64_t i = 0; i < rows; ++i)
        std::memcpy(to + (r + i) * width, bounce_.data() + i * strides[1], seg);
    }
  }
  if (covered < tile.rows * tile.columns)
    throw bug_error({{}, tensor.name}, "pieces of a quantized weight lack");
}

}  // namespace ckpt::reshard
