// SPDX-License-Identifier: Apache-2.0
// Converts numbers to fp8 in blocks of 128x128, like DeepGEMM's cast by blocks:
//
//   amax = max(|x| of the block, 1e-4)      all in f32
//   code = e4m3(x * (1 / amax * 448))       scale = amax / 448
//
// PyTorch computes the quotient 448.0 / amax as a reciprocal first. A row of
// blocks is read once if it is held in memory, else twice. The scales follow
// from the same largest magnitudes, which are kept for them.
#include <algorithm>
#include <bit>
#include <compare>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "ckpt/error.h"
#include "reshard/numbers/cast_kernel.h"
#include "reshard/sources/decode.h"
#include "reshard/sources/decode_kernel.h"
#include "reshard/sources/sources.h"

namespace ckpt::reshard {
namespace {

constexpr float kMostE4m3 = 448.0F;
constexpr float kLeastAmax = 1e-4F;
constexpr uint64_t kRowsAtOnce = 128 << 10;  // elements
constexpr uint64_t kHeldRows = 4 << 20;      // bytes
constexpr size_t kKept = 256 << 10;          // numbers

uint64_t parts(uint64_t count, uint64_t by) { return (count + by - 1) / by; }

}  // namespace

// The largest magnitudes of the last rows of blocks, from all threads: codes
// are made first, so their scales need not read the weight again.
class HandleCache::Maxima {
 public:
  struct Key {
    const void* files;
    std::string weight;
    uint64_t batch, row;
    auto operator<=>(const Key&) const = default;
  };
  bool find(const Key& key, std::vector<float>& largest) {
    const std::scoped_lock lock(mutex_);
    const auto found = rows_.find(key);
    if (found == rows_.end()) return false;
    largest = found->second;
    return true;
  }
  void add(const Key& key, const std::vector<float>& largest) {
    const std::scoped_lock lock(mutex_);
    if (!rows_.emplace(key, largest).second) return;
    order_.push_back(key);
    for (held_ += largest.size(); held_ > kKept; order_.pop_front()) {
      const auto oldest = rows_.find(order_.front());
      held_ -= oldest->second.size();
      rows_.erase(oldest);
    }
  }

 private:
  std::mutex mutex_;
  std::map<Key, std::vector<float>> rows_;
  std::deque<Key> order_;
  size_t held_ = 0;  // numbers
};

HandleCache::Maxima& HandleCache::maxima() {
  std::call_once(made_, [&] { maxima_ = std::make_shared<Maxima>(); });
  return *maxima_;
}

// Reads the stored numbers of a row of blocks into rows_; false if there are
// too many.
bool DecodeReader::hold_rows(const Decoding& made, uint64_t batch,
                             uint64_t block_row) {
  const uint64_t begin = block_row * made.block_rows;
  if (rows_of_ == &made && rows_batch_ == batch && rows_begin_ == begin)
    return true;
  const uint64_t rows = std::min(made.block_rows, made.rows - begin);
  const uint64_t bytes = rows * made.columns * element_size(made.codes.dtype);
  if (bytes > kHeldRows) return false;
  rows_of_ = nullptr;
  rows_.resize(bytes);
  box(made, made.codes, {batch, begin, rows, 0, made.columns}, rows_.data());
  rows_of_ = &made;
  rows_batch_ = batch;
  rows_begin_ = begin;
  return true;
}

// A place in the held rows.
const std::byte* DecodeReader::held_at(const Decoding& made, uint64_t row,
                                       uint64_t column) const {
  return rows_.data() + ((row - rows_begin_) * made.columns + column) *
                            element_size(made.codes.dtype);
}

// Widens a tile of a row of blocks into line_.
void DecodeReader::widen_rows(const Decoding& made, const Tile& tile) {
  if (!hold_rows(made, tile.batch, tile.row / made.block_rows))
    return floats(made, made.codes, tile, line_);
  line_.resize(tile.rows * tile.columns);
  const bool whole = tile.columns == made.columns;
  const uint64_t runs = whole ? 1 : tile.rows;
  const uint64_t run = whole ? tile.rows * tile.columns : tile.columns;
  for (uint64_t r = 0; r < runs; ++r) {
    const std::byte* from = held_at(made, tile.row + r, tile.column);
    float* to = line_.data() + r * tile.columns;
    if (made.codes.dtype == DType::f32)
      std::memcpy(to, from, run * sizeof *to);
    else
      best_cast_kernel().cast(made.codes.dtype, DType::f32, from,
                              reinterpret_cast<std::byte*>(to), run);
  }
}

// Sets largest_ for each block in that row of blocks.
void DecodeReader::find_blocks(const Decoding& made, uint64_t batch,
                               uint64_t block_row) {
  if (blocks_of_ == &made && blocks_batch_ == batch && blocks_row_ == block_row)
    return;
  blocks_of_ = nullptr;
  const HandleCache::Maxima::Key key{made.files.get(), made.name, batch,
                                     block_row};
  if (handles_.maxima().find(key, largest_)) {
    blocks_of_ = &made;
    blocks_batch_ = batch;
    blocks_row_ = block_row;
    return;
  }
  const uint64_t blocks = parts(made.columns, made.block_columns);
  std::vector<uint32_t> bits(blocks, 0);
  const uint64_t end = std::min(made.rows, (block_row + 1) * made.block_rows);
  const bool held =
      made.codes.dtype == DType::bf16 && hold_rows(made, batch, block_row);
  const uint64_t step = std::max<uint64_t>(1, kRowsAtOnce / made.columns);
  for (uint64_t row = block_row * made.block_rows; row < end; row += step) {
    const uint64_t rows = std::min(step, end - row);
    if (held) {
      for (uint64_t r = 0; r < rows; ++r)
        for (uint64_t b = 0; b < blocks; ++b) {
          const uint64_t column = b * made.block_columns;
          bits[b] = std::max(bits[b], best_decode_kernel().largest_bf16(
                                          held_at(made, row + r, column),
                                          std::min(made.block_columns,
                                                   made.columns - column)));
        }
      continue;
    }
    widen_rows(made, {batch, row, rows, 0, made.columns});
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
  handles_.maxima().add(key, largest_);
  blocks_of_ = &made;
  blocks_batch_ = batch;
  blocks_row_ = block_row;
}

// Makes a tile of one row of blocks.
void DecodeReader::make_codes(const Decoding& made, const Tile& tile,
                              std::byte* out) {
  find_blocks(made, tile.batch, tile.row / made.block_rows);
  const bool held = made.codes.dtype == DType::bf16 &&
                    hold_rows(made, tile.batch, tile.row / made.block_rows);
  if (!held) widen_rows(made, tile);
  for (uint64_t r = 0; r < tile.rows; ++r)
    for (uint64_t c = 0; c < tile.columns;) {
      const uint64_t block = (tile.column + c) / made.block_columns;
      const uint64_t end = std::min(
          tile.columns, (block + 1) * made.block_columns - tile.column);
      const float scale = 1 / largest_[block] * kMostE4m3;
      const uint64_t at = r * tile.columns + c;
      if (held)
        best_decode_kernel().bf16_to_e4m3(
            held_at(made, tile.row + r, tile.column + c), scale, out + at,
            end - c);
      else
        best_decode_kernel().scale(line_.data() + at, 0, scale, end - c);
      c = end;
    }
  if (held) return;
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
