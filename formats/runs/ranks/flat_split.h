// SPDX-License-Identifier: Apache-2.0
// Whose states the numbers of FSDP1's optimizer are, if it has several groups
// or not all parameters: what the parts of all ranks prove.
//
//   parameters   q [36]  q_norm [6]  k [36]  k_norm [6]    of the model
//   group 0      0: 9 9 9 9          1: 9 9 9 9            elements by part
//   group 1      2: 2 2 2 0          3: 1 0 3 2
//
// Each group is a part of the model's order. A numbering is accepted only if it
// is the only one. Private to this room.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "formats/runs/optimizer/optimizer.h"
#include "formats/runs/ranks/flat_units.h"
#include "formats/runs/ranks/ranks.h"

namespace ckpt::runs {

struct Numbering {
  const std::vector<FlatUnit>* units = nullptr;
  bool original = false;  // numbers are parameters, not units
  // Both fit: units of one parameter each, cut evenly. Another number of ranks
  // would tell them apart.
  bool either = false;
  // Of each number that has states: the place of its unit in `units`, or of its
  // parameter in the order.
  std::map<uint64_t, size_t> owner;
  std::vector<std::vector<size_t>> groups;  // the places of each
};

// Nothing, and the reason, if there is none or several.
std::optional<Numbering> only_numbering(
    const RankCatalog& ranks, const Groups& groups, const ParameterOrder& order,
    const std::vector<std::vector<FlatUnit>>& ways, std::string& why_not);

// Of each group, in its order.
std::vector<std::vector<Parameter>> parameters_of_groups(
    const Numbering& numbering, const ParameterOrder& order);

// The units as the writers need them: by the numbers in the file.
std::vector<FlatUnit> units_by_number(const Numbering& numbering);

}  // namespace ckpt::runs
