// SPDX-License-Identifier: Apache-2.0
#include "app/options/slice.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "ckpt/error.h"
#include "lib/text/format.h"
#include "lib/text/words.h"

namespace ckpt::app {
namespace {

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = std::min(text.find(at), text.size());
    parts.push_back(text::trimmed(text.substr(0, end), " "));
    if (end == text.size()) return parts;
    text.remove_prefix(end + 1);
  }
}

class Parser {
 public:
  Parser(std::string_view text, const std::string& name)
      : text_(text), name_(name) {}

  Range range(std::string_view part, uint64_t size) const {
    const std::vector<std::string_view> ends = split(part, ':');
    if (ends.size() == 1) return index(part, size);
    if (ends.size() > 3) refuse("more than two colons");
    const int64_t step = ends.size() == 3 ? number(ends[2]).value_or(1) : 1;
    if (step < 1) refuse("a step below 1");
    const uint64_t begin = clamped(number(ends[0]).value_or(0), size);
    const uint64_t end =
        ends[1].empty() ? size : clamped(*number(ends[1]), size);
    const auto by = static_cast<uint64_t>(step);
    const uint64_t count = end <= begin ? 0 : (end - begin - 1) / by + 1;
    return {.begin = begin, .count = count, .step = by};
  }

  [[noreturn]] void refuse(std::string_view why) const {
    throw usage_error({{}, text::printable(name_)}, "[{}]: {}",
                      text::printable(text_), why)
        .with_hint("slices are as in NumPy: [0], [:4], [2:8,-1], [...,0]");
  }

 private:
  Range index(std::string_view part, uint64_t size) const {
    const auto given = number(part);
    if (!given) refuse("an empty index");
    const int64_t at = *given < 0 ? *given + signed_size(size) : *given;
    if (at < 0 || static_cast<uint64_t>(at) >= size)
      refuse(fmt::format("index {} of a dimension of {}", *given, size));
    return {.begin = static_cast<uint64_t>(at), .count = 1, .single = true};
  }

  std::optional<int64_t> number(std::string_view part) const {
    if (part.empty()) return std::nullopt;
    int64_t value = 0;
    const auto [end, failure] =
        std::from_chars(part.data(), part.data() + part.size(), value);
    if (failure != std::errc{} || end != part.data() + part.size())
      refuse(fmt::format("'{}' is not a number", text::printable(part)));
    return value;
  }

  static int64_t signed_size(uint64_t size) {
    return static_cast<int64_t>(std::min<uint64_t>(size, INT64_MAX));
  }

  // As in Python: negative indexes count from the end, too large ones become
  // the end.
  static uint64_t clamped(int64_t at, uint64_t size) {
    const int64_t last = signed_size(size);
    if (at < 0) at = at < -last ? 0 : at + last;
    return static_cast<uint64_t>(std::min(at, last));
  }

  std::string_view text_;
  const std::string& name_;
};

}  // namespace

std::vector<Range> parse_slice(std::string_view text, const Shape& shape,
                               const std::string& name) {
  const Parser parser(text, name);
  std::vector<std::string_view> parts = split(text, ',');
  if (text::trimmed(text, " ").empty()) parts.clear();
  const auto dots = static_cast<size_t>(std::ranges::count(parts, "..."));
  if (dots > 1) parser.refuse("more than one ellipsis");
  if (parts.size() - dots > shape.size())
    parser.refuse(fmt::format("{} indexes for {}", parts.size() - dots,
                              to_string(shape)));
  std::vector<Range> ranges;
  const auto whole = [&] { ranges.push_back({.count = shape[ranges.size()]}); };
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] == "...") {
      const size_t after = parts.size() - i - 1;
      while (ranges.size() + after < shape.size()) whole();
    } else {
      ranges.push_back(parser.range(parts[i], shape[ranges.size()]));
    }
  }
  while (ranges.size() < shape.size()) whole();
  return ranges;
}

}  // namespace ckpt::app
