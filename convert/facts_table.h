// SPDX-License-Identifier: Apache-2.0
// facts.json, parsed. Of this room alone.
#pragma once

#include <string>
#include <vector>

#include "models/defaults.h"
#include "models/numbers.h"

namespace ckpt::families {

const Json& facts_table();
// What the ledger says of a family: of the model type where it is named too.
Json traits_of(const Family& family, const Json& values);
std::string model_type_of(const Family& family, const Json& values);
// `values` with the names that the ledger's expressions have beside those of
// the dialect: trait, rope, window; and with the defaults of the class, whose
// names are in `defaulted`.
Json prepared(const Family& family, const std::string& side, Json values,
              std::vector<std::string>& defaulted);

}  // namespace ckpt::families
