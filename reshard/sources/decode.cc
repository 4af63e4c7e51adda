// SPDX-License-Identifier: Apache-2.0
#include "reshard/sources/decode.h"

#include <algorithm>
#include <cstring>

#include "lib/trace.h"
#include "reshard/numbers/cast_kernel.h"
#include "reshard/numbers/turn.h"
#include "reshard/sources/decode_kernel.h"
#include "reshard/sources/decode_turned.h"
#include "reshard/sources/sources.h"

namespace ckpt::reshard {
namespace {

constexpr uint64_t kPanel = 2 << 20;         // bytes of a transposed panel
constexpr uint64_t kLine = 128;              // codes of 4 bits in a cache line
constexpr uint64_t kCacheLine = 64;          // bytes
constexpr uint64_t kAhead = 16;              // rows of codes fetched in advance
constexpr uint64_t kHeld = 4608 << 10;       // bytes of codes for some panels
constexpr uint64_t kStripCodes = 128 << 10;  // bytes of codes read at once
constexpr uint64_t kTile = 256 << 10;        // elements that share a lookup
constexpr uint64_t kWidest = 32 << 10;       // columns in a line

uint64_t up(uint64_t count, uint64_t by) { return (count + by - 1) / by; }

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

// A tile in elements of the stored codes. Includes words and pairs that extend
// past it as a whole.
DecodeReader::Tile DecodeReader::stored_tile(const Decoding& made,
                                             const Tile& tile) {
  Tile stored = tile;
  const uint64_t per = 32 / made.bits;
  const uint64_t end = tile.column + tile.columns;
  switch (made.coding) {
    case Coding::kScaled:
    case Coding::kFp8Codes:
    case Coding::kFp8Scales:
    case Coding::kGgml:
    case Coding::kGgmlBlocks:
    case Coding::kCombined:
      break;
    case Coding::kPacked:
      stored.column = tile.column * made.bits / 8;
      stored.columns = up(end * made.bits, 8) - stored.column;
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
  // Nobody cuts elements; if anyone did, these would be few.
  std::vector<std::byte> whole((end - first) * element);
  read_elements(made, first, end - first, whole.data());
  std::memcpy(buffer.data(), whole.data() + (offset - first * element),
              buffer.size());
}

void DecodeReader::read_elements(const Decoding& made, uint64_t first,
                                 uint64_t count, std::byte* out) {
  if (made.coding == Coding::kFp8Codes || made.coding == Coding::kFp8Scales)
    return read_fp8(made, first, count, out);
  if (made.coding == Coding::kGgml || made.coding == Coding::kGgmlBlocks)
    return read_ggml(made, first, count, out);
  if (made.coding == Coding::kCombined)
    return read_combined(made, first, count, out);
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
// [column, column + count). Its neighbours are wanted next, and their codes are
// beside its own.
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
    // Not a power of two, which would put all rows into a few lines of a cache.
    panel_stride_ = (up(panel_columns_ * element, kCacheLine) | 1) * kCacheLine;
    panel_.resize(panel_rows_ * panel_stride_);
    hold(made, {batch, panel_column_, panel_columns_, panel_row_, panel_rows_});
    make(made, {batch, panel_column_, panel_columns_, panel_row_, panel_rows_},
         {panel_.data(), element, panel_stride_});
    panel_of_ = &made;
  }
  std::memcpy(out,
              panel_.data() + (row - panel_row_) * panel_stride_ +
                  (column - panel_column_) * element,
              count * element);
}

// Reads the codes of a panel and those after it at once, with their scales: a
// panel alone has only a few bytes of each row.
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

// Loads the scales and zeros of a tile.
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

// Makes the rows of a tile one by one.
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
  const uint64_t row_bits = tile.columns * made.bits;
  const uint64_t step =
      std::clamp<uint64_t>(kStripCodes * 8 / row_bits / 32 * 32, 32, 1 << 16);
  for (uint64_t begin = 0; begin < tile.rows;) {
    // Whole words of codes, whatever row a tile begins with.
    const uint64_t rows =
        std::min(step - (tile.row + begin) % 32, tile.rows - begin);
    const Tile strip{tile.batch, tile.row + begin, rows, tile.column,
                     tile.columns};
    const Codes stored = codes(made, strip);
    const trace::Span span("dequantize",
                           rows * tile.columns * element_size(made.dtype));
    for (uint64_t r = 0; r < rows; r += kTurnedRows) {
      const uint64_t few = std::min(kTurnedRows, rows - r);
      const Place to{place.at + (begin + r) * place.by_row, place.by_row,
                     place.by_column};
      if (!make_turned(made, strip, r, few, stored, to))
        make_lines(made, strip, r, few, stored, to);
    }
    begin += rows;
  }
}

// Makes at most 32 rows of a strip, each as a line of f32 before it is
// narrowed.
void DecodeReader::make_lines(const Decoding& made, const Tile& strip,
                              uint64_t first, uint64_t rows,
                              const Codes& stored, const Place& place) {
  const uint64_t element = element_size(made.dtype);
  const CastStep narrow = best_cast_kernel().narrow(DType::f32, made.dtype);
  const bool turns = place.by_column != element;
  line_.resize(strip.columns + 16);
  narrow_.resize(turns ? rows * strip.columns * element : 0);
  for (uint64_t i = 0; i < rows; ++i) {
    const uint64_t r = first + i;
    // Held rows are far apart, which no processor predicts.
    if (made.coding != Coding::kGptq && r + kAhead < strip.rows)
      __builtin_prefetch(stored.at + (r + kAhead) * stored.stride);
    line(made, strip, r, stored);
    if (made.factor != 1)
      best_decode_kernel().scale(line_.data(), 0, made.factor, strip.columns);
    round_line(made, strip.columns);
    const auto* numbers = reinterpret_cast<const std::byte*>(line_.data());
    std::byte* to = turns ? narrow_.data() + i * strip.columns * element
                          : place.at + i * place.by_row;
    if (narrow)
      narrow(numbers, to, strip.columns);
    else
      std::memcpy(to, numbers, strip.columns * element);
  }
  if (turns)
    turn(element, narrow_.data(), rows, strip.columns, place.at, place.by_row,
         place.by_column);
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

}  // namespace ckpt::reshard
