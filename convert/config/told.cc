// SPDX-License-Identifier: Apache-2.0
#include "convert/config/told.h"

#include <algorithm>

#include "ckpt/error.h"

namespace ckpt::families {
namespace {

constexpr int64_t kMostTold = 1 << 20;

Json named_shapes(const Catalog& catalog) {
  Json shapes = Json::object();
  for (const Tensor& tensor : catalog.tensors)
    if (tensor.kind == Kind::model) shapes[tensor.name] = tensor.shape;
  return shapes;
}

// Null for a list of which something is not told.
Json without_gaps(Json list) {
  for (const Json& one : list)
    if (one.is_null()) return nullptr;
  return list;
}

// The names of all expressions in a table.
class Names {
 public:
  explicit Names(bool whole) : whole_(whole) {}

  void add(const std::string& text) {
    const Expr parsed(text);
    for (const std::string& name : parsed.names())
      keys.insert(whole_ ? name : name.substr(0, name.find('.')));
  }
  void add_all(const Json& entry) {
    if (entry.is_structured())
      for (const Json& item : entry) add_all(item);
    if (entry.is_object() && entry.contains("of"))
      add(entry.at("of").get<std::string>());
    if (!entry.is_string()) return;
    const auto& text = entry.get_ref<const std::string&>();
    if (text.starts_with('=')) add(text.substr(1));
  }

  std::set<std::string> keys;

 private:
  const bool whole_;
};

}  // namespace

const Json& ToldScope::value(const std::string& name) const {
  if (name == "l") return held_ = layer_;
  if (name.starts_with('$'))
    return held_ =
               eval(table_.at("vars").at(name).get_ref<const std::string&>());
  if (name == "shapes" && catalog_ != nullptr) {
    if (shapes_.is_null()) shapes_ = named_shapes(*catalog_);
    return shapes_;
  }
  const Json* at = &file_;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t dot = std::min(name.find('.', begin), name.size());
    if (!at->is_object()) return kNone;
    const auto found = at->find(name.substr(begin, dot - begin));
    if (found == at->end()) return kNone;
    at = &*found;
    begin = dot + 1;
  }
  return *at;
}

Json ToldScope::made(const Json& entries) {
  Json made = Json::object();
  for (const auto& [key, entry] : entries.items()) {
    Json one = filled(entry);
    if (!one.is_null() && !(one.is_object() && one.empty()))
      made[key] = std::move(one);
  }
  return made;
}

Json ToldScope::filled(const Json& entry) {
  if (entry.is_string()) {
    const auto& text = entry.get_ref<const std::string&>();
    return text.starts_with('=') ? eval(text.substr(1)) : entry;
  }
  if (entry.is_array()) {
    Json list = Json::array();
    for (const Json& one : entry) list.push_back(filled(one));
    return without_gaps(std::move(list));
  }
  if (!entry.is_object()) return entry;
  return entry.contains("each") ? of_layers(entry) : made(entry);
}

Json ToldScope::of_layers(const Json& entry) {
  const std::string layers = table_.at("layers");
  const Json count = eval(layers);
  if (!count.is_number_integer() || count < 0 || count > kMostTold)
    throw unfaithful_error({}, "{} is {}", layers, count.dump());
  Json list = Json::array();
  for (int64_t l = 0; l < count; ++l) {
    layer_ = l;
    list.push_back(eval(entry.at("of").get<std::string>()));
  }
  return without_gaps(std::move(list));
}

Json told_config(ToldScope& scope, std::string* unmet) {
  const Json& table = scope.table();
  for (const Json& pair : table.at("requires"))
    if (!scope.holds(pair[0].get<std::string>())) {
      *unmet = pair[1].get<std::string>();
      return nullptr;
    }
  for (const Json& model : table.at("models")) {
    if (!scope.holds(model.at("when").get<std::string>())) continue;
    Json entries = table.at("common");
    entries.update(model.at("config"));
    return scope.made(entries);
  }
  return nullptr;
}

std::set<std::string> told_keys(const Json& table, bool whole) {
  Names names(whole);
  for (const Json& key : table.at("keys")) names.keys.insert(key);
  for (const Json& pair : table.at("requires"))
    names.add(pair[0].get<std::string>());
  for (const Json& text : table.at("vars")) names.add(text.get<std::string>());
  names.add_all(table.at("common"));
  names.add_all(table.value("told", Json()));
  for (const Json& model : table.at("models")) {
    names.add(model.at("when").get<std::string>());
    names.add_all(model.at("config"));
  }
  return std::move(names.keys);
}

}  // namespace ckpt::families
