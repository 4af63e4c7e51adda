// SPDX-License-Identifier: Apache-2.0
// A family file -> a Family, with every mistake at its line.
#pragma once

#include <map>
#include <set>
#include <string>

#include "models/family.h"
#include "models/located.h"

namespace ckpt::families {

// The schema's words that more than one file of this room needs.
const std::vector<std::string>& known_dialects();

// Checks the expressions of the file: compiles them, and looks up their names.
// `indices` are those that they may use.
struct Names {
  std::set<std::string> vars;       // "$L", as far as they are defined
  std::set<std::string> all_index;  // "l", "e" …
};
void check_expression(const Value& value, const std::string& text,
                      const Names& names, const std::set<std::string>& indices);

// The expressions in the braces of "decoder.layers.{l}.x".
std::vector<std::string> braces(const Value& value, const std::string& name);

// One rule: its fields, its operations, and whether they go together.
Rule read_rule(const Value& value, const Names& names);

// Literals, "=expression", {"each", "of", "where"}: the tables config and
// hf_config.
void check_table(const Value& value, const Names& names);

// vLLM's names and fusions.
VllmSection read_vllm(const Value& section);

// Which of ModelOpt's files a tensor is in.
ModeloptSection read_modelopt(const Value& section);

// fairseq2's tp_rules, buffers, tied, shapes and so on.
void check_fairseq2(const Value& section);

}  // namespace ckpt::families
