// SPDX-License-Identifier: Apache-2.0
// Text for people: aligned columns, patterns of names, sizes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::app {

enum class Align : uint8_t { kLeft, kRight };

// Columns are as wide as their widest cell, with two spaces between them. If
// they don't fit the width (0: no limit),
//   the columns of `give_up` go, in this order, while any of them helps;
//   the names in column `shrink_column` are cut between their segments;
//   names that can't be cut and stay distinct have a line of their own:
//
//     decoder.….linear_fc1.weight               ×2  bf16  [512, 64]
//     decoder.layers.#.mlp.experts.linear_fc1.layer_norm_weight
//                                               ×2  bf16  [64]
class Table {
 public:
  explicit Table(std::vector<Align> columns, size_t indent = 0)
      : columns_(std::move(columns)), indent_(indent) {}
  void row(std::vector<std::string> cells);
  void shrink_column(size_t column) { shrink_ = column; }
  void give_up(std::vector<size_t> columns) { give_up_ = std::move(columns); }
  // No column is dropped while names have that many columns; names are cut
  // instead.
  void cut_names_first(size_t columns) { cut_first_ = columns; }
  // What text(0) takes.
  size_t width() const;
  std::string text(size_t width) const;

 private:
  std::vector<size_t> natural() const;
  size_t total(const std::vector<size_t>& widths) const;
  std::vector<std::string> cut_names(size_t width) const;
  std::string line(const std::vector<std::string>& cells,
                   const std::vector<size_t>& widths, bool open = false) const;

  std::vector<Align> columns_;
  std::vector<std::vector<std::string>> rows_;
  std::vector<size_t> give_up_;
  size_t indent_;
  size_t shrink_ = 0;
  size_t cut_first_ = SIZE_MAX;
};

// The columns that UTF-8 text takes on a terminal (approximately: combining
// marks 0, wide East Asian and emoji 2).
size_t display_width(std::string_view text);

// "model.lay…weight" of at most `width` columns.
std::string cut_middle(std::string_view text, size_t width);

// Ways to cut whole segments (between dots or slashes) out of the middle of a
// name, to at most `width` columns, best first:
//
//   decoder.layers.#.mlp.linear_fc1.weight   in 30 columns
//   decoder.….mlp.linear_fc1.weight
//   decoder.layers.….linear_fc1.weight …
//
// The name alone if it fits; none if no cut does.
std::vector<std::string> cut_segments(std::string_view text, size_t width);

// Wraps lines at `width` columns, after a space or, in a long name, after a
// dot; continuation lines are indented by four columns. A width below 20
// changes nothing.
std::string folded(std::string_view lines, size_t width);

// "model.layers…" of at most `width` columns.
std::string cut_end(std::string_view text, size_t width);

// "1,234,567"
std::string grouped(uint64_t number);
// "6.74 B", "1.2 M" of parameters, say
std::string si_count(uint64_t number);

}  // namespace ckpt::app
