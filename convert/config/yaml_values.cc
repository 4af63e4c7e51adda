// SPDX-License-Identifier: Apache-2.0
#include "convert/config/yaml_values.h"

#include <string_view>

#include "formats/fairseq2/model_yaml.h"

namespace ckpt::families {
namespace {

struct ToJson {
  Json operator()(std::monostate) const { return nullptr; }
  template <class Value>
  Json operator()(const Value& value) const {
    return value;
  }
};

void put(Json& object, std::string_view dotted, Json value) {
  Json* at = &object;
  for (size_t dot; (dot = dotted.find('.')) != dotted.npos;) {
    at = &(*at)[std::string(dotted.substr(0, dot))];
    if (!at->is_object()) *at = Json::object();
    dotted.remove_prefix(dot + 1);
  }
  (*at)[std::string(dotted)] = std::move(value);
}

// As text::parse_json has numbers.
Json as_parsed(Json value) {
  if (value.is_number_integer() && value >= 0) return value.get<uint64_t>();
  return value;
}

// {"0": a, "1": b}, which is how flat values have a list.
Json as_lists(Json value) {
  if (!value.is_object()) return as_parsed(std::move(value));
  for (Json& item : value) item = as_lists(std::move(item));
  Json list = Json::array();
  for (size_t i = 0; i < value.size(); ++i) {
    const auto item = value.find(std::to_string(i));
    if (item == value.end()) return value;
    list.push_back(*item);
  }
  return value.empty() ? value : list;
}

}  // namespace

Json nested_values(const Config& flat) {
  Json values = Json::object();
  for (const auto& [key, value] : flat)
    put(values, key, std::visit(ToJson(), value));
  return values;
}

Json listed_values(const Config& flat) { return as_lists(nested_values(flat)); }

Json yaml_values(const std::string& text, const std::string& path) {
  return listed_values(fairseq2::flat_yaml(path, text));
}

}  // namespace ckpt::families
