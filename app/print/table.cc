// SPDX-License-Identifier: Apache-2.0
#include "app/print/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
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

// The glyph or colour sequence at the front of a text. Names arrive escaped
// (text::printable), so any ESC is one of ours.
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

constexpr size_t kGap = 2;     // between columns
constexpr size_t kLeast = 12;  // of a name that is cut

// True if the remaining ends of a name fit another name, too: nobody could tell
// which one was cut.
bool is_vague(const std::string& cut, const std::string& name,
              const std::vector<std::string>& all) {
  const size_t mark = cut.find("…");
  if (mark == cut.npos) return false;
  const std::string_view head = std::string_view(cut).substr(0, mark);
  const std::string_view tail =
      std::string_view(cut).substr(mark + std::string_view("…").size());
  return std::ranges::any_of(all, [&](const std::string& other) {
    return other != name && other.starts_with(head) && other.ends_with(tail);
  });
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
  // The end of a name tells more than its start, so it gets the odd column.
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

namespace {

// Bytes of a line that fit; all of them if the line can't be broken.
size_t bytes_that_fit(std::string_view line, size_t width) {
  const size_t first = std::min(line.find_first_not_of(' '), line.size());
  size_t at = 0, columns = 0, space = 0, mark = 0;
  while (at < line.size()) {
    const Glyph next = glyph(line.substr(at));
    columns += next.columns;
    if (columns > width && next.columns != 0) break;
    at += next.bytes;
    if (at <= first) continue;
    if (at < line.size() && line[at] == ' ') space = at;
    if (line[at - 1] == '.' || line[at - 1] == '/') mark = at;
  }
  if (at == line.size()) return at;
  return space != 0 ? space : mark != 0 ? mark : line.size();
}

void fold_line(std::string_view line, size_t width, std::string& out) {
  constexpr size_t kIndent = 4;
  size_t room = width;
  while (true) {
    const size_t bytes = bytes_that_fit(line, room);
    out += line.substr(0, bytes);
    out += '\n';
    line.remove_prefix(bytes);
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    if (line.empty()) return;
    out.append(kIndent, ' ');
    room = width - kIndent;
  }
}

}  // namespace

std::string folded(std::string_view lines, size_t width) {
  constexpr size_t kLeastWidth = 20;
  if (width < kLeastWidth) return std::string(lines);
  std::string out;
  while (!lines.empty()) {
    const size_t end = std::min(lines.find('\n'), lines.size());
    fold_line(lines.substr(0, end), width, out);
    if (end == lines.size()) out.pop_back();  // there was no newline
    lines.remove_prefix(std::min(end + 1, lines.size()));
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

std::vector<std::string> cut_segments(std::string_view text, size_t width) {
  if (display_width(text) <= width) return {std::string(text)};
  std::vector<size_t> starts{0};  // of the segments
  for (size_t i = 0; i + 1 < text.size(); ++i)
    if (text[i] == '.' || text[i] == '/') starts.push_back(i + 1);
  std::vector<std::string> cuts;
  constexpr size_t kMostSegments = 64;  // a hostile name may have thousands
  if (starts.size() < 3 || starts.size() > kMostSegments) return cuts;
  // The end of a name tells more than its start, so it goes last.
  for (size_t head = 1; head + 1 < starts.size(); ++head) {
    const std::string_view front = text.substr(0, starts[head]);
    for (size_t tail = head + 1; tail < starts.size(); ++tail) {
      const char mark[] = {text[starts[tail] - 1], '\0'};
      std::string cut =
          fmt::format("{}…{}{}", front, mark, text.substr(starts[tail]));
      if (display_width(cut) > width) continue;
      cuts.push_back(std::move(cut));
    }
  }
  std::ranges::stable_sort(cuts, std::greater{}, [](const std::string& cut) {
    return std::pair(display_width(cut.substr(cut.find("…"))),
                     display_width(cut));
  });
  return cuts;
}

void Table::row(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

namespace {

// A name after `head`, on as many lines as it needs, broken after a dot or
// slash where possible.
std::string broken_name(std::string head, std::string_view name, size_t width) {
  constexpr size_t kMore = 4;  // indentation of later lines
  std::string out;
  size_t room = width - std::min(width - 1, display_width(head));
  const size_t indent = display_width(head) + kMore;
  while (!name.empty()) {
    size_t bytes = 0, used = 0, good = 0;
    while (bytes < name.size()) {
      const Glyph next = glyph(name.substr(bytes));
      if (used + next.columns > room) break;
      used += next.columns;
      bytes += next.bytes;
      if (name[bytes - 1] == '.' || name[bytes - 1] == '/') good = bytes;
    }
    if (bytes == 0) bytes = glyph(name).bytes;
    if (bytes < name.size() && good != 0) bytes = good;
    out += head;
    out += name.substr(0, bytes);
    out += '\n';
    name.remove_prefix(bytes);
    head.assign(std::min(indent, width / 2), ' ');
    room = width - head.size();
  }
  return out;
}

}  // namespace

std::vector<size_t> Table::natural() const {
  std::vector<size_t> widths(columns_.size(), 0);
  for (const auto& cells : rows_)
    for (size_t c = 0; c < cells.size(); ++c)
      widths[c] = std::max(widths[c], display_width(cells[c]));
  return widths;
}

size_t Table::total(const std::vector<size_t>& widths) const {
  size_t sum = indent_;
  for (const size_t w : widths) sum += w + (w != 0 ? kGap : 0);
  return sum - std::min(sum, kGap);
}

size_t Table::width() const { return total(natural()); }

// The names of all rows, cut to so many columns; "" for one that needs a line
// of its own. Different names stay different.
std::vector<std::string> Table::cut_names(size_t width) const {
  constexpr size_t kMostCompared = 1000;  // names, each with all others
  std::vector<std::vector<std::string>> ways;
  std::vector<std::string> all;
  std::map<std::string, size_t> at;  // which way each name is cut
  for (const auto& cells : rows_)
    if (at.try_emplace(cells[shrink_], all.size()).second)
      all.push_back(cells[shrink_]);
  for (const std::string& name : all) {
    ways.push_back(cut_segments(name, width));
    if (all.size() <= kMostCompared)
      std::erase_if(ways.back(), [&](const std::string& cut) {
        return is_vague(cut, name, all);
      });
  }
  std::vector<size_t> way(ways.size(), 0);
  // Names that were cut to the same text all try their next cut. Each round
  // uses one up, and a name has few.
  for (bool again = true; again;) {
    std::map<std::string_view, std::vector<size_t>> taken;
    for (size_t i = 0; i < ways.size(); ++i)
      if (way[i] < ways[i].size()) taken[ways[i][way[i]]].push_back(i);
    again = false;
    for (const auto& [cut, alike] : taken) {
      if (alike.size() == 1) continue;
      again = true;
      for (const size_t i : alike) ++way[i];
    }
  }
  std::vector<std::string> names;
  for (const auto& cells : rows_) {
    const size_t i = at.at(cells[shrink_]);
    names.push_back(way[i] < ways[i].size() ? ways[i][way[i]] : "");
  }
  return names;
}

std::string Table::line(const std::vector<std::string>& cells,
                        const std::vector<size_t>& widths, bool open) const {
  std::string line;
  pad(line, indent_);
  for (size_t c = 0; c < cells.size(); ++c) {
    if (widths[c] == 0) continue;
    const size_t fill =
        widths[c] - std::min(widths[c], display_width(cells[c]));
    if (columns_[c] == Align::kRight) pad(line, fill);
    line += cells[c];
    if (columns_[c] == Align::kLeft) pad(line, fill);
    pad(line, kGap);
  }
  if (open) return line;
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

std::string Table::text(size_t width) const {
  std::vector<size_t> widths = natural();
  const bool tight = width != 0 && total(widths) > width;
  if (tight) {
    std::vector<size_t> least = widths;
    least[shrink_] = std::min(least[shrink_], cut_first_);
    for (const size_t column : give_up_)
      if (total(least) > width) widths[column] = least[column] = 0;
  }
  if (!tight || total(widths) <= width) {
    std::string out;
    for (const auto& cells : rows_) out += line(cells, widths);
    return out;
  }
  size_t& column = widths[shrink_];
  const size_t excess = total(widths) - width;
  column =
      std::max(std::min(column, kLeast), column > excess ? column - excess : 0);
  const std::vector<std::string> names = cut_names(column);
  std::string out;
  for (size_t r = 0; r < rows_.size(); ++r) {
    std::vector<std::string> cells = rows_[r];
    cells[shrink_] = names[r];
    const bool own_line = names[r].empty() && !rows_[r][shrink_].empty();
    if (own_line) {
      std::vector<std::string> before(cells.begin(), cells.begin() + shrink_);
      std::string head = line(before, widths, true);
      out += broken_name(std::move(head), rows_[r][shrink_], width);
      if (shrink_ + 1 == cells.size()) continue;
      std::fill(cells.begin(), cells.begin() + shrink_, std::string());
    }
    std::string text = line(cells, widths);
    text.pop_back();
    out += cut_end(text, width);
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
