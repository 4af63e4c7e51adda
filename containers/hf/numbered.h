// SPDX-License-Identifier: Apache-2.0
// Sets of files numbered x of N: model-00001-of-00003.safetensors.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::formats {

// The files of an x-of-N set: model-00001-of-00003.safetensors. Numbers run
// from 1 to N (from 0 to N-1 in some old files).
struct NumberedName {
  std::string stem;  // "model"
  uint32_t number = 0;
  uint32_t count = 0;
  std::string rest;  // ".safetensors"
};
std::optional<NumberedName> parse_numbered(std::string_view file_name);
// "model-00002-of-00003.safetensors"
std::string numbered_name(std::string_view stem, uint64_t number,
                          uint64_t count, std::string_view rest);

// Those of `names` that are STEM-x-of-N followed by `rest`.
std::vector<std::string> numbered_set(std::span<const std::string> names,
                                      std::string_view stem,
                                      std::string_view rest);

// Throws an input_error that names the missing files if a set that begins in
// `names` is incomplete.
void check_complete_sets(const std::string& directory,
                         std::span<const std::string> names);

// "a, b, c and 4 more", printable, for messages.
std::string list_some(std::span<const std::string> names);

}  // namespace ckpt::formats
