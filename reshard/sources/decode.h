// SPDX-License-Identifier: Apache-2.0
// One thread's reads of elements that are decoded as they are read
// (lib/decoding.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lib/decoding.h"
#include "reshard/sources/file_cache.h"

namespace ckpt::reshard {

class HandleCache;
class SourceReader;
struct TurnedKernel;

class DecodeReader {
 public:
  explicit DecodeReader(HandleCache& handles);
  ~DecodeReader();

  // Bytes of the file that `made` describes. Throws input_error for scales
  // that are not numbers.
  void read(const Decoding& made, uint64_t offset, std::span<std::byte> buffer);
  uint64_t bytes_read() const;

  // All elements of the terms of a kCombined, in f32: `use` gets the index of
  // the first and a line of each term, which it may change.
  using UseLines =
      std::function<void(uint64_t first, std::vector<std::vector<float>>&)>;
  void each_line(const Decoding& made, const UseLines& use);

  // About how much it holds at most: panels and lines.
  static constexpr uint64_t kMemory = uint64_t{8} << 20;

 private:
  // Rows and columns in natural order.
  struct Tile {
    uint64_t batch, row, rows, column, columns;
  };
  // Where element (row, column) of a tile goes: at + row * by_row + column *
  // by_column.
  struct Place {
    std::byte* at;
    uint64_t by_row, by_column;
  };
  // Stored codes, with `stride` bytes from row to row.
  struct Codes {
    const std::byte* at;
    uint64_t stride;
  };
  static bool contains(const Tile& whole, const Tile& part);
  static Tile stored_tile(const Decoding& made, const Tile& tile);
  SourceReader& reader(const Decoding& made);
  void read_elements(const Decoding& made, uint64_t first, uint64_t count,
                     std::byte* out);
  void read_panel(const Decoding& made, uint64_t batch, uint64_t row,
                  uint64_t column, uint64_t count, std::byte* out);
  void make(const Decoding& made, const Tile& tile, const Place& place);
  void make_lines(const Decoding& made, const Tile& strip, uint64_t first,
                  uint64_t rows, const Codes& stored, const Place& place);
  // decode_line.cc
  bool make_turned(const Decoding& made, const Tile& strip, uint64_t row,
                   uint64_t rows, const Codes& stored, const Place& place);
  bool one_group(const Decoding& made, uint64_t row, uint64_t rows) const;
  void find_powers(const Tile& strip, uint64_t row);
  void find_tables(const Decoding& made, const Tile& strip, uint64_t row,
                   const TurnedKernel& kernel);
  void load_scales(const Decoding& made, const Tile& tile);
  void load_groups(const Decoding& made, const Tile& tile);
  void load_order(const Decoding& made, const Tile& tile);
  Codes codes(const Decoding& made, const Tile& tile);
  void hold(const Decoding& made, const Tile& panel);
  void load(const Decoding& made, const Tile& tile);
  void line(const Decoding& made, const Tile& tile, uint64_t row,
            const Codes& codes);
  void scaled_line(const Decoding& made, const Tile& tile, uint64_t row,
                   const std::byte* codes);
  void check_zero(const Decoding& made, const Tile& tile, uint64_t row,
                  uint64_t column, const std::byte* codes, uint64_t count);
  uint64_t group_of(const Decoding& made, uint64_t row) const;
  // `count` rows of `row` bytes, the first of them at `from`.
  struct Rows {
    uint64_t count, row, from, element;
  };
  void read_part(const Decoding& made, const Piece& part, const Rows& rows,
                 std::byte* to, uint64_t width);
  void gather_part(const Decoding& made, const Piece& part, const Rows& rows,
                   std::byte* to, uint64_t width);
  // A box of a tensor of three dimensions, row-major.
  void box(const Decoding& made, const Tensor& tensor, const Tile& tile,
           std::byte* out);
  // decode_packed.cc
  void packed_line(const Decoding& made, const Tile& tile,
                   const std::byte* row);
  void find_pairs(const Decoding& made);
  void scale_scales(const Decoding& made, const Tile& wanted);
  void load_packed_zeros(const Decoding& made, const Tile& wanted,
                         uint64_t first, uint64_t rows);
  void round_line(const Decoding& made, uint64_t count);
  void add_zeros(const Decoding& made, const Tile& tile, uint64_t row);
  // decode_combined.cc
  template <class Number>
  struct Lines {
    std::vector<Number> base, term, deltas, sums;
  };
  void read_combined(const Decoding& made, uint64_t first, uint64_t count,
                     std::byte* out);
  template <class Number>
  void check_sums(const Decoding& made, const Tile& tile,
                  const std::vector<Number>& sums, double limit);
  void put_combined(const Decoding& made, const Tile& tile, std::byte* out);
  template <class Number>
  void combine(const Decoding& made, const Tile& tile, Lines<Number>& lines);
  void read_term(const Decoding& made, const Tensor& tensor, const Tile& tile,
                 std::vector<float>& out);
  void read_term(const Decoding& made, const Tensor& tensor, const Tile& tile,
                 std::vector<double>& out);
  // Rows as a whole where they fit in `most` elements.
  static void each_tile(const Decoding& made, uint64_t first, uint64_t count,
                        uint64_t most,
                        const std::function<void(const Tile&)>& use);
  // decode_fp8.cc
  void read_fp8(const Decoding& made, uint64_t first, uint64_t count,
                std::byte* out);
  void find_blocks(const Decoding& made, uint64_t batch, uint64_t block_row);
  void make_codes(const Decoding& made, const Tile& tile, std::byte* out);
  bool hold_rows(const Decoding& made, uint64_t batch, uint64_t block_row);
  const std::byte* held_at(const Decoding& made, uint64_t row,
                           uint64_t column) const;
  void widen_rows(const Decoding& made, const Tile& tile);
  // decode_blocks.cc
  void read_ggml(const Decoding& made, uint64_t first, uint64_t count,
                 std::byte* out);
  void numbers_of_blocks(const Decoding& made, const Tile& blocks);
  void blocks_of_numbers(const Decoding& made, const Tile& blocks);
  // decode_scales.cc
  void floats(const Decoding& made, const Tensor& tensor, const Tile& tile,
              std::vector<float>& out);
  void numbers(const Decoding& made, const Tensor& tensor, const Tile& tile,
               std::vector<float>& out);

  HandleCache& handles_;
  std::shared_ptr<const std::vector<File>> files_;
  std::unique_ptr<SourceReader> reader_;
  uint64_t read_before_ = 0;  // by readers of other lists of files

  Lines<float> singles_;
  Lines<double> doubles_;

  // Scales and zeros of the last tile loaded.
  const Decoding* scales_of_ = nullptr;
  Tile scales_tile_{};
  std::vector<float> scales_, zeros_;
  uint64_t scale_row_ = 0, scale_column_ = 0, scale_columns_ = 0;
  bool has_zero_scale_ = false;
  bool plain_powers_ = false;  // scales that change e2m1's exponents alone
  std::vector<int32_t> order_;
  uint64_t order_row_ = 0;
  std::vector<std::byte> codes_, bounce_, narrow_, stored_, rounded_;
  std::vector<int16_t> powers_;

  // kPacked: the two numbers of each byte of 4-bit codes.
  const Decoding* pairs_of_ = nullptr;
  std::vector<float> pairs_, outer_;

  // The value of each code of each column, in one group of rows.
  const Decoding* tables_of_ = nullptr;
  uint64_t tables_group_ = 0, tables_column_ = 0;
  std::vector<std::byte> tables_;
  std::vector<float> line_;

  // The largest magnitudes of a row of blocks, and its stored numbers if there
  // are few of them.
  const Decoding* blocks_of_ = nullptr;
  uint64_t blocks_batch_ = 0, blocks_row_ = 0;
  std::vector<float> largest_;
  const Decoding* rows_of_ = nullptr;
  uint64_t rows_batch_ = 0, rows_begin_ = 0;
  std::vector<std::byte> rows_;

  // The stored codes of adjacent panels.
  const Decoding* held_of_ = nullptr;
  Tile held_tile_{};
  std::vector<std::byte> held_;

  // The last panel of a transposed matrix.
  const Decoding* panel_of_ = nullptr;
  uint64_t panel_batch_ = 0, panel_row_ = 0, panel_rows_ = 0;
  uint64_t panel_column_ = 0, panel_columns_ = 0, panel_stride_ = 0;
  std::vector<std::byte> panel_;
};

}  // namespace ckpt::reshard
