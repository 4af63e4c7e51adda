// SPDX-License-Identifier: Apache-2.0
#include "convert/litgpt.h"

#include <algorithm>
#include <set>

#include "ckpt/error.h"
#include "convert/yaml_values.h"
#include "lib/embedded.h"
#include "lib/text/format.h"
#include "models/expr.h"

namespace ckpt::families {
namespace {

constexpr int64_t kMostOfLitgpt = 1 << 20;

const Json& litgpt_table() {
  static const Json table = Json::parse(embedded_text("litgpt"));
  return table;
}

// The names in the table's expressions: keys of the file, the table's own
// variables, and the number of a layer.
class LitgptScope : public Expr::Scope {
 public:
  explicit LitgptScope(const Json& file) : file_(file) {}

  const Json& value(const std::string& name) const override {
    if (name == "l") return held_ = layer_;
    if (name.starts_with('$')) return held_ = eval(text_of(name));
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

  Json eval(const std::string& text) const { return Expr(text).eval(*this); }
  bool holds(const std::string& text) const { return truthy(eval(text)); }

  // Without what is null: {"each": "l", "of": …} is a list of all layers'.
  Json table(const Json& entries) {
    Json made = Json::object();
    for (const auto& [key, entry] : entries.items()) {
      Json one = filled(entry);
      if (!one.is_null() && !(one.is_object() && one.empty()))
        made[key] = std::move(one);
    }
    return made;
  }

 private:
  inline static const Json kNone;

  static const std::string& text_of(const std::string& name) {
    return litgpt_table().at("vars").at(name).get_ref<const std::string&>();
  }

  Json filled(const Json& entry) {
    if (entry.is_string()) {
      const auto& text = entry.get_ref<const std::string&>();
      return text.starts_with('=') ? eval(text.substr(1)) : entry;
    }
    if (!entry.is_object()) return entry;
    return entry.contains("each") ? of_layers(entry) : table(entry);
  }

  Json of_layers(const Json& entry) {
    const Json count = eval("n_layer");
    if (!count.is_number_integer() || count < 0 || count > kMostOfLitgpt)
      throw unfaithful_error({}, "n_layer is {}", count.dump());
    Json list = Json::array();
    for (int64_t l = 0; l < count; ++l) {
      layer_ = l;
      list.push_back(eval(entry.at("of").get<std::string>()));
    }
    return list;
  }

  const Json& file_;
  Json layer_;
  mutable Json held_;
};

void add_names(const std::string& text, std::set<std::string>& keys) {
  const Expr parsed(text);
  for (const std::string& name : parsed.names())
    keys.insert(name.substr(0, name.find('.')));
}

// All texts in the table that are expressions.
void add_names_of(const Json& entry, std::set<std::string>& keys) {
  if (entry.is_structured())
    for (const Json& item : entry) add_names_of(item, keys);
  if (!entry.is_string()) return;
  const auto& text = entry.get_ref<const std::string&>();
  if (text.starts_with('=')) add_names(text.substr(1), keys);
}

std::set<std::string> known_keys() {
  std::set<std::string> keys;
  const Json& table = litgpt_table();
  for (const Json& key : table.at("keys")) keys.insert(key);
  for (const Json& pair : table.at("requires"))
    add_names(pair[0].get<std::string>(), keys);
  for (const Json& text : table.at("vars"))
    add_names(text.get<std::string>(), keys);
  add_names_of(table.at("common"), keys);
  for (const Json& model : table.at("models")) {
    add_names(model.at("when").get<std::string>(), keys);
    add_names_of(model.at("config"), keys);
    for (const Json& entry : model.at("config"))
      if (entry.is_object() && entry.contains("of"))
        add_names(entry.at("of").get<std::string>(), keys);
  }
  return keys;
}

[[noreturn]] void not_transformers(const std::string& path,
                                   const std::string& why) {
  throw unfaithful_error({path, {}},
                         "no model of transformers that is known computes "
                         "what this one does: {}",
                         why)
      .with_hint("keep litgpt's names: --dialect keep");
}

}  // namespace

bool has_litgpt_names(const Catalog& catalog) {
  return std::ranges::any_of(catalog.tensors, [](const Tensor& tensor) {
    return tensor.name.ends_with(".attn.qkv.weight") ||
           tensor.name.ends_with(".attn.attn.weight");
  });
}

bool is_litgpt_config(std::string_view text) {
  return text.find("n_embd:") != text.npos &&
         text.find("mlp_class_name:") != text.npos;
}

Json litgpt_config(const std::string& text, const std::string& path) {
  const Json file = yaml_values(text, path);
  LitgptScope scope(file);
  try {
    for (const Json& pair : litgpt_table().at("requires"))
      if (!scope.holds(pair[0].get<std::string>()))
        not_transformers(path, pair[1].get<std::string>());
    for (const Json& model : litgpt_table().at("models")) {
      if (!scope.holds(model.at("when").get<std::string>())) continue;
      Json entries = litgpt_table().at("common");
      entries.update(model.at("config"));
      return scope.table(entries);
    }
  } catch (const Error& error) {
    if (!error.where().path.empty()) throw;
    throw unfaithful_error({path, {}}, "{}", error.problem());
  }
  const auto shown = [&](const char* key) {
    return text::printable(scope.eval(key).dump());
  };
  not_transformers(
      path,
      fmt::format("the parts of \"{}\" are in none of them together ({}, {})",
                  shown("name"), shown("mlp_class_name"),
                  shown("norm_class_name")));
}

std::vector<std::string> unknown_litgpt_keys(const std::string& text,
                                             const std::string& path) {
  static const std::set<std::string> known = known_keys();
  std::vector<std::string> unknown;
  const Json file = yaml_values(text, path);
  for (const auto& [key, value] : file.items())
    if (!known.contains(key) && truthy(value)) unknown.push_back(key);
  return unknown;
}

}  // namespace ckpt::families
