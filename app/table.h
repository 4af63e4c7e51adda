// Text for people: aligned columns, patterns of names, sizes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::app {

enum class Align : uint8_t { kLeft, kRight };

// Columns as wide as their widest cell, two spaces between them. With a
// width (not 0), the cells of column `shrink` are cut in the middle until the
// rows fit.
class Table {
 public:
  explicit Table(std::vector<Align> columns, size_t indent = 0)
      : columns_(std::move(columns)), indent_(indent) {}
  void row(std::vector<std::string> cells);
  void shrink_column(size_t column) { shrink_ = column; }
  std::string text(size_t width) const;

 private:
  std::vector<Align> columns_;
  std::vector<std::vector<std::string>> rows_;
  size_t indent_;
  size_t shrink_ = 0;
};

// Columns that UTF-8 text takes on a terminal (good enough: combining marks
// 0, wide East Asian and emoji 2).
size_t display_width(std::string_view text);

// "model.lay…weight" of at most `width` columns.
std::string cut_middle(std::string_view text, size_t width);

// "model.layers…" of at most `width` columns.
std::string cut_end(std::string_view text, size_t width);

// "1,234,567"
std::string grouped(uint64_t number);
// "6.74 B", "1.2 M" of parameters, say
std::string si_count(uint64_t number);

}  // namespace ckpt::app
