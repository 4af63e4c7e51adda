// SPDX-License-Identifier: Apache-2.0
// facts.json, parsed. Private to this room.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "models/defaults.h"
#include "models/numbers.h"

namespace ckpt::families {

const Json& facts_table();

// True if one of a fact's values is none, and the other what transformers'
// class takes for none.
bool is_of_class(const std::string& name, const Json& a, const Json& b);
// What the ledger says about a family, or about the model type if that has an
// entry.
Json traits_of(const Family& family, const Json& values);
// True for a class that reads a rope for each type of layer.
bool has_rope_by_type(const Json& traits);
std::string model_type_of(const Family& family, const Json& values);
// The keys of config.json that the family's variables are made of.
std::set<std::string> keys_of_variables(const Family& family);
// With {"__float__": "Infinity"} for infinity, as transformers 5 writes what
// JSON has no number for, and before it wrote as Infinity.
Json spelled(Json value);
// `values` plus the names that the ledger's expressions use (trait, rope,
// window) and the defaults of the class, whose names go into `defaulted`.
Json prepared(const Family& family, const std::string& side, Json values,
              std::vector<std::string>& defaulted);

}  // namespace ckpt::families
