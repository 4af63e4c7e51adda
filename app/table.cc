#include "app/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <span>

namespace ckpt::app {
namespace {

struct Range {
  char32_t first, last;
};

constexpr Range kZeroWidth[] = {
    {0x300, 0x36F}, {0x200B, 0x200F}, {0x20D0, 0x20FF}, {0xFE00, 0xFE0F}};
constexpr Range kWide[] = {
    {0x1100, 0x115F},   {0x2E80, 0xA4CF},  {0xAC00, 0xD7A3}, {0xF900, 0xFAFF},
    {0xFE30, 0xFE6F},   {0xFF00, 0xFF60},  {0xFFE0, 0xFFE6}, {0x1F300, 0x1F64F},
    {0x1F900, 0x1F9FF}, {0x20000, 0x3FFFD}};

bool in(char32_t code, std::span<const Range> ranges) {
  return std::ranges::any_of(ranges, [&](const Range& range) {
    return code >= range.first && code <= range.last;
  });
}

struct Glyph {
  size_t bytes;
  size_t columns;
};

// The glyph or colour sequence at the front of a text. Names come escaped
// (text::printable), so the only ESC there is one of ours.
Glyph glyph(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead == 0x1B) {
    const size_t m = text.find('m');
    return {m == text.npos ? 1 : m + 1, 0};
  }
  if (lead < 0x80) return {1, 1};
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (length > text.size()) return {1, 1};
  char32_t code = lead & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; ++i)
    code = code << 6 | (static_cast<unsigned char>(text[i]) & 63u);
  return {length, in(code, kZeroWidth) ? 0u : in(code, kWide) ? 2u : 1u};
}

void pad(std::string& out, size_t columns) { out.append(columns, ' '); }

}  // namespace

size_t display_width(std::string_view text) {
  size_t columns = 0;
  while (!text.empty()) {
    const Glyph next = glyph(text);
    columns += next.columns;
    text.remove_prefix(next.bytes);
  }
  return columns;
}

std::string cut_middle(std::string_view text, size_t width) {
  const size_t full = display_width(text);
  if (full <= width) return std::string(text);
  if (width < 3) return std::string("…");
  // The end of a name tells more than its start: it gets the odd column.
  const size_t head = (width - 1) / 2;
  const size_t tail = width - 1 - head;
  std::string out;
  size_t at = 0;
  bool cut = false;
  while (!text.empty()) {
    const Glyph next = glyph(text);
    if (at + next.columns <= head || at >= full - tail) {
      out.append(text, 0, next.bytes);
    } else if (!cut) {
      out += "…";
      cut = true;
    }
    at += next.columns;
    text.remove_prefix(next.bytes);
  }
  return out;
}

std::string cut_end(std::string_view text, size_t width) {
  if (display_width(text) <= width) return std::string(text);
  size_t at = 0, columns = 0;
  while (at < text.size()) {
    const Glyph next = glyph(text.substr(at));
    if (columns + next.columns + 1 > width) break;
    columns += next.columns;
    at += next.bytes;
  }
  return std::string(text.substr(0, at)) + "…";
}

void Table::row(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::text(size_t width) const {
  constexpr size_t kGap = 2, kLeast = 12;
  std::vector<size_t> widths(columns_.size(), 0);
  for (const auto& cells : rows_)
    for (size_t c = 0; c < cells.size(); ++c)
      widths[c] = std::max(widths[c], display_width(cells[c]));
  size_t total = indent_;
  for (const size_t w : widths) total += w + (w != 0 ? kGap : 0);
  total -= std::min(total, kGap);
  const bool shrink = width != 0 && total > width;
  if (shrink) {
    size_t& column = widths[shrink_];
    const size_t excess = total - width;
    column = std::max(std::min(column, kLeast),
                      column > excess ? column - excess : 0);
  }

  std::string out;
  for (const auto& cells : rows_) {
    std::string line;
    pad(line, indent_);
    for (size_t c = 0; c < cells.size(); ++c) {
      if (widths[c] == 0) continue;
      const std::string cell =
          shrink && c == shrink_ ? cut_middle(cells[c], widths[c]) : cells[c];
      const size_t fill = widths[c] - std::min(widths[c], display_width(cell));
      if (columns_[c] == Align::kRight) pad(line, fill);
      line += cell;
      if (columns_[c] == Align::kLeft) pad(line, fill);
      pad(line, kGap);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line;
    out += '\n';
  }
  return out;
}

std::string grouped(uint64_t number) {
  std::string digits = fmt::format_int(number).str();
  for (size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, 1, ',');
  return digits;
}

std::string si_count(uint64_t number) {
  constexpr std::string_view kUnits[] = {"", " K", " M", " B", " T"};
  auto value = static_cast<double>(number);
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  if (unit == 0) return fmt::format_int(number).str();
  return fmt::format("{:.{}f}{}", value,
                     value < 10    ? 2
                     : value < 100 ? 1
                                   : 0,
                     kUnits[unit]);
}

}  // namespace ckpt::app
