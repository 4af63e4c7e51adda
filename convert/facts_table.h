// SPDX-License-Identifier: Apache-2.0
// facts.json, parsed. Private to this room.
#pragma once

#include <string>
#include <vector>

#include "models/defaults.h"
#include "models/numbers.h"

namespace ckpt::families {

const Json& facts_table();
// What the ledger says about a family, or about the model type if that has an
// entry.
Json traits_of(const Family& family, const Json& values);
std::string model_type_of(const Family& family, const Json& values);
// `values` plus the names that the ledger's expressions use (trait, rope,
// window) and the defaults of the class, whose names go into `defaulted`.
Json prepared(const Family& family, const std::string& side, Json values,
              std::vector<std::string>& defaulted);

}  // namespace ckpt::families
