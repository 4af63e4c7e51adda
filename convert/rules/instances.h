// SPDX-License-Identifier: Apache-2.0
// The rules of a dialect for one model: every tensor by name, with the hf
// tensors that it is made from.
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

// The existing names on one of the two sides, which "**" stands for.
struct NamesThere {
  std::vector<std::string> hf, dialect;
  // Only what the hf side has is asked: what the dialect can't say about a
  // model is none of its business.
  bool hf_alone = false;
};

// True for a rule of a name that older releases of the dialect have; it comes
// before the one of today's name.
bool is_older(const Dialect& dialect, const Rule& rule);

// In the order of the rules, without those whose `when` does not hold; optional
// and alias rules are included. Throws unfaithful_error for a missing number,
// and for more than four million names. Rules with "**" come last, once for
// each existing name that no other rule has. Older names are there only where
// the dialect's own are asked for.
std::vector<Instance> instances(const Dialect& dialect, const Numbers& numbers,
                                const NamesThere& there = {});

// Parameters that published files have and the model does not read: the
// family's trait "unread", {"model.layers.{l}.x": condition}.
std::vector<std::string> unread_names(const Numbers& numbers);

}  // namespace ckpt::families
