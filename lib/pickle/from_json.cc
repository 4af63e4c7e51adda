// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "lib/pickle/json.h"

namespace ckpt::pickle {
namespace {

using Value = nlohmann::json;

Id add_scalar(Document& document, const Value& value) {
  switch (value.type()) {
    case Value::value_t::boolean:
      return document.add_bool(value.get<bool>());
    case Value::value_t::number_integer:
      return document.add_int(value.get<int64_t>());
    case Value::value_t::number_unsigned:
      if (const auto number = value.get<uint64_t>();
          number <= static_cast<uint64_t>(INT64_MAX))
        return document.add_int(static_cast<int64_t>(number));
      return document.add_big_int(std::to_string(value.get<uint64_t>()));
    case Value::value_t::number_float:
      return document.add_float(value.get<double>());
    case Value::value_t::string:
      return document.add_string(value.get_ref<const std::string&>());
    default:
      return document.add_none();
  }
}

}  // namespace

// The contents come first, so that a list gets its full size at once. No deeper
// than JSON is read (lib/text/scan.h).
Id from_json(Document& document, const Value& value) {
  if (value.is_array()) {
    std::vector<Id> items;
    items.reserve(value.size());
    for (const Value& item : value) items.push_back(from_json(document, item));
    return document.add_container(Type::kList, items);
  }
  if (!value.is_object()) return add_scalar(document, value);
  const Id dict = document.add_container(Type::kDict);
  for (const auto& [key, item] : value.items())
    document.set(dict, key, from_json(document, item));
  return dict;
}

}  // namespace ckpt::pickle
