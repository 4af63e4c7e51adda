// SPDX-License-Identifier: Apache-2.0
// "0-15,20": the lists of --layers and --experts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::library {

struct NumberList {
  std::string_view option;  // "--layers"
  const char* what;         // "a layer number"
  const char* example;      // "0-15,20"
  uint64_t limit;           // of numbers, and of how many there are
  const char* plural;       // "layers"
};

// In the order of the text, ranges expanded. Throws usage_error.
std::vector<uint64_t> parse_numbers(const NumberList& list,
                                    const std::string& text);

}  // namespace ckpt::library
