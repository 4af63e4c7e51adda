// SPDX-License-Identifier: Apache-2.0
// The lines of a list of checksums. Private to this room.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "containers/sums/sums.h"

namespace ckpt::sums {

struct Line {
  std::string hex;
  std::string name;  // "" where a checksum stands alone
};

// Throws input_error for a line that is none, and for a list without any.
std::vector<Line> lines_of(const std::string& path);

// The digits in lower case; "" if there are other characters.
std::string lower_hex(std::string_view text);

std::optional<Algorithm> by_digits(size_t digits);

// The path of a file that a list names; "" if it leads out of `root`.
std::string inside(const std::string& root, const std::string& name);

}  // namespace ckpt::sums
