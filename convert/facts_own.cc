// SPDX-License-Identifier: Apache-2.0
// Facts that have names of ours in Megatron's args, for want of Megatron's.
#include <algorithm>

#include "convert/facts.h"
#include "convert/facts_table.h"
#include "lib/text/glob.h"

namespace ckpt::families {
namespace {

bool says_something(const Json& value) {
  return !value.is_null() && value != Json(false);
}

// "off" of a key are values that change nothing, or that other arguments say
// too; "*": any. A list is harmless if each of its values is.
bool is_harmless(const Json& entry, const Json& value) {
  if (value.is_array() && !value.empty())
    return std::ranges::all_of(
        value, [&](const Json& item) { return is_harmless(entry, item); });
  const Json off = entry.value("off", Json::array());
  return std::ranges::any_of(
      off, [&](const Json& one) { return one == value || one == Json("*"); });
}

}  // namespace

bool is_allowed(const std::vector<std::string>& globs,
                const std::string& fact) {
  return std::ranges::any_of(globs, [&](const std::string& glob) {
    return text::Glob(glob).matches(fact);
  });
}

std::vector<FactDifference> own_args(const Json& args) {
  const Json& table = facts_table().at("own_args");
  const Json carried = args.value("ckpt_config", Json::object());
  std::vector<FactDifference> own;
  const auto add = [&](const std::string& key, const Json& value) {
    const Json entry = table.value(key, Json::object());
    if (says_something(value) && !is_harmless(entry, value))
      own.push_back({entry.value("fact", key), value,
                     entry.value("can", Json()), "", ""});
  };
  for (const auto& [key, value] : args.items())
    if (key.starts_with("ckpt_") && key != "ckpt_config") add(key, value);
  for (const auto& [key, value] : carried.items()) add("config." + key, value);
  return own;
}

}  // namespace ckpt::families
