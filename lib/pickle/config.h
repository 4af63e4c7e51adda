// SPDX-License-Identifier: Apache-2.0
// Values of a pickle as configurations have them, whatever Python type they had
// there. The one place that decides this: whoever reads a number, a switch or a
// list of somebody's args reads it through here.
//
//   None, bool, int, float, str    themselves
//   numpy's scalars, arrays        numbers, lists of numbers
//   list, tuple, torch.Size        lists
//   dict, OrderedDict, …           objects
//   anything else                  {"!…": what it is}: no value, see is_foreign
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "lib/pickle/value.h"

namespace ckpt::pickle {

// At most `budget` values are read; the rest is foreign.
nlohmann::json to_config(const Document& document, Id root,
                         uint64_t budget = 100'000);

// True for what no configuration can say, such as an Enum, a tensor or a set:
// an object with a single key that begins with '!'. A list with one is foreign.
bool is_foreign(const nlohmann::json& value);
// What it is, for messages: "an object of models.Kind".
std::string foreign_name(const nlohmann::json& value);

}  // namespace ckpt::pickle
