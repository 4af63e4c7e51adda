// SPDX-License-Identifier: Apache-2.0
// The regular expressions of family files, matched against whole keys.
//
// The subset that the files use: literals, \. and other escaped punctuation,
// ".", [abc], [0-9], (a|b), and ?, *, + after any of them. A pattern becomes a
// small automaton once, so that a match is one table step per byte: std::regex
// takes 20 times as long, and its stack grows with the key.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::families {

class Pattern {
 public:
  // Throws usage_error for syntax beyond the subset and for patterns that
  // need more than 65,000 states.
  explicit Pattern(const std::string& text);
  bool matches(std::string_view key) const;

 private:
  std::array<uint8_t, 256> letter_{};  // byte -> column
  size_t letters_ = 0;
  std::vector<uint16_t> next_;  // state * letters_ + column; 0: no match
  std::vector<bool> accepts_;
};

}  // namespace ckpt::families
