// SPDX-License-Identifier: Apache-2.0
// What kinds of values a configuration's keys can hold, as the expressions that
// read them say: `rotary_percent ?? 1` is a number, `layer_types` of
// `pick(layer_types, l)` a list, `$tie ? 0 : 1` a switch. A value of another
// kind would be computed with, as Python might do, and mean another model.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "models/family.h"

namespace ckpt::families {

class KeyKinds {
 public:
  // The variables of a dialect on one side.
  void read(const Dialect& dialect, const std::string& side);
  // An expression whose value is of the kinds `result`; 0: not known.
  void read(const Expr& expression, uint8_t result);
  // Empty if the key may hold `value`; otherwise what it has to be, for
  // messages: "a number". Keys that no expression reads may hold anything.
  std::string expected(std::string_view key, const Json& value) const;

 private:
  std::map<std::string, uint8_t, std::less<>> kinds_;
};

}  // namespace ckpt::families
