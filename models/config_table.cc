// SPDX-License-Identifier: Apache-2.0
// A family's tables, which make one configuration from another's numbers.
#include "ckpt/error.h"
#include "models/numbers.h"

namespace ckpt::families {
namespace {

constexpr uint64_t kMostItems = 1 << 20;

Json each_of(const Json& entry, const Numbers& numbers) {
  const auto index = entry.at("each").get<std::string>();
  const auto expression = entry.at("of").get<std::string>();
  const uint64_t count = numbers.count(index);
  if (count > kMostItems)
    throw unfaithful_error({numbers.source(), {}}, "a list of {} values",
                           count);
  Json list = Json::array();
  const auto where = entry.value("where", std::string());
  for (uint64_t i = 0; i < count; ++i)
    if (numbers.holds(where, {{index, i}}))
      list.push_back(numbers.eval(expression, {{index, i}}));
  if (!entry.value("text", false)) return list;
  std::string text;
  for (const Json& item : list) {
    if (!item.is_string())
      throw unfaithful_error({numbers.source(), {}}, "{} is not text",
                             item.dump());
    text += item.get_ref<const std::string&>();
  }
  return text;
}

// Recurses as deep as the file nests, which the reader bounds.
Json value_of(const Json& entry, const Numbers& numbers) {
  if (entry.is_string()) {
    const auto& text = entry.get_ref<const std::string&>();
    return text.starts_with('=') ? numbers.eval(text.substr(1)) : entry;
  }
  if (entry.is_array()) {
    Json list = Json::array();
    for (const Json& item : entry) list.push_back(value_of(item, numbers));
    return list;
  }
  if (!entry.is_object()) return entry;
  if (entry.size() == 1 && entry.contains("json"))  // a text inside another
    return config_table(entry.at("json"), numbers)
        .dump(-1, ' ', false, Json::error_handler_t::replace);
  return entry.contains("each") ? each_of(entry, numbers)
                                : config_table(entry, numbers);
}

}  // namespace

Json config_table(const Json& table, const Numbers& numbers) {
  Json result = Json::object();
  for (const auto& [key, entry] : table.items()) {
    Json value = value_of(entry, numbers);
    if (!value.is_null()) result[key] = std::move(value);
  }
  return result;
}

}  // namespace ckpt::families
