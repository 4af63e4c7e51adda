// SPDX-License-Identifier: Apache-2.0
// A family file -> a Family, with every mistake at its line.
#pragma once

#include <map>
#include <set>
#include <string>

#include "models/family.h"
#include "models/located.h"

namespace ckpt::families {

// The words of the schema that more than one file of this room needs.
const std::vector<std::string>& known_dialects();

// An expression of the file: compiled, and its names compared with what there
// is. `indices` are those that it may use.
struct Names {
  std::set<std::string> vars;       // "$L", as far as they are defined
  std::set<std::string> all_index;  // "l", "e" …
};
void check_expression(const Value& value, const std::string& text,
                      const Names& names, const std::set<std::string>& indices);

// What stands in the braces of "decoder.layers.{l}.x": expressions.
std::vector<std::string> braces(const Value& value, const std::string& name);

// One rule: its fields, its operations, and whether they go together.
Rule read_rule(const Value& value, const Names& names);

// Literals, "=expression", {"each", "of", "where"}: the tables config and
// hf_config.
void check_table(const Value& value, const Names& names);

// fairseq2's tp_rules, buffers, tied, shapes and their kin.
void check_fairseq2(const Value& section);

}  // namespace ckpt::families
