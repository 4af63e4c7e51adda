// SPDX-License-Identifier: Apache-2.0
// Which parameter a number in an optimizer file stands for.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "lib/pickle/value.h"

namespace ckpt::fairseq2 {

inline constexpr const char* kWithoutOptimizer =
    "open the step's model directory to leave the optimizer out";

// param_groups[g]["params"], checked: together they are 0, 1, 2 … in any order.
// Throws input_error naming `path`.
std::vector<std::vector<uint64_t>> read_groups(const pickle::Document& doc,
                                               pickle::Id groups,
                                               const std::string& path);

// What the state of a number shows about its parameter.
struct Signature {
  Shape shape;         // tp-local
  bool known = false;  // a number without state shows nothing
  bool flat = false;   // only the number of elements: shape is [n]
};

// One parameter as the model's files have it.
struct Parameter {
  std::string name;
  Shape shape;  // tp-local
};

// The name of each number. One group is numbered in the model's order. With
// several, each is a part of that order, and the shapes must leave only one way
// to divide it. Throws unfaithful_error if they don't, or if the counts differ.
std::vector<std::string> name_numbers(
    const std::vector<std::vector<uint64_t>>& groups,
    const std::vector<Parameter>& order,
    const std::map<uint64_t, Signature>& signatures, const std::string& path);

}  // namespace ckpt::fairseq2
