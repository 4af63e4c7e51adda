// SPDX-License-Identifier: Apache-2.0
// The rules of a dialect for one model: every tensor by its name, with the
// tensors of hf that it is made of.
#pragma once

#include <string>
#include <vector>

#include "models/numbers.h"

namespace ckpt::families {

struct Instance {
  const Rule* rule = nullptr;
  Indices index;                // the values of the indices in rule->to
  std::string to;               // in the dialect
  std::vector<std::string> hf;  // "each" spelled out
};

// The names that there are, on one of the two sides: what "**" stands for.
struct NamesThere {
  std::vector<std::string> hf, dialect;
};

// In the order of the rules, with those left out whose `when` does not hold.
// Optional and alias ones are among them. Throws unfaithful_error for a
// missing number, and if there are more than four million names. Rules with
// "**" come last, once for each name there that no other rule has.
std::vector<Instance> instances(const Dialect& dialect, const Numbers& numbers,
                                const NamesThere& there = {});

}  // namespace ckpt::families
