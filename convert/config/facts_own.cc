// SPDX-License-Identifier: Apache-2.0
// Facts that have names of our own in Megatron's args, for lack of Megatron's.
#include <algorithm>

#include "convert/config/dialects.h"
#include "convert/config/facts.h"
#include "convert/config/facts_table.h"
#include "convert/config/values.h"
#include "lib/text/glob.h"

namespace ckpt::families {
namespace {

bool says_something(const Json& value) {
  return !value.is_null() && value != Json(false);
}

// A key's "off" lists the values that change nothing or that other arguments
// say too; "*" is any. A list is harmless if each of its values is.
bool is_harmless(const Json& entry, const Json& value) {
  if (value.is_array() && !value.empty())
    return std::ranges::all_of(
        value, [&](const Json& item) { return is_harmless(entry, item); });
  const Json off = entry.value("off", Json::array());
  return std::ranges::any_of(
      off, [&](const Json& one) { return one == value || one == Json("*"); });
}

// Without notes for the way back, or Megatron's own (ckpt_format, ckpt_step).
Json without_notes(const Json& args) {
  Json rest = Json::object();
  for (const auto& [key, value] : args.items())
    if (key == "ckpt_config" || facts_table().at("own_args").contains(key))
      rest[key] = value;
  return rest;
}

const Json* megatron_row(std::string_view family) {
  for (const Json& row : facts_table().at("megatron"))
    if (std::ranges::count(row.at("families"), Json(family)) != 0) return &row;
  return nullptr;
}

// The row of the table "megatron" that names the family or, failing that, the
// nearest one that it extends.
const Json* megatron_row(const Family& family) {
  const Json* row = megatron_row(family.name());
  for (const std::string& base : family.bases())
    if (!row) row = megatron_row(base);
  return row;
}

// The base of a family with a tower may be a language model, whose row doesn't
// know of towers. All tensors of the tower are written, hence a warning only.
void add_tower(const Family& family, MegatronModel& model) {
  if (family.hf().text_type.empty() || megatron_row(family.name()) ||
      std::ranges::count(model.lacks, "tower", &FactDifference::name) != 0)
    return;
  model.program = "code of your own";
  model.unbuilt = true;
  model.warned.push_back("tower");
  model.lacks.push_back({"tower", "a tower beside the language model",
                         facts_table().at("lacking").at("tower"), "", ""});
}

}  // namespace

MegatronModel megatron_model(const Family& family) {
  MegatronModel model;
  if (const Json* row = megatron_row(family)) {
    model.program = row->at("model").get<std::string>();
    model.unbuilt = model.program == "none";
    model.warned = row->value("warned", std::vector<std::string>());
    if (model.program == "none" || model.program == "own_args")
      model.program = row->value("into", std::string("code of your own"));
    const Json lacks = row->value("lacks", Json::object());
    for (const auto& [name, is] : lacks.items())
      model.lacks.push_back(
          {name, is, facts_table().at("lacking").at(name), "", ""});
  }
  add_tower(family, model);
  return model;
}

MegatronModel megatron_model(const Catalog& target) {
  if (dialect_of_format(target.format) != "mcore") return {};
  const Json args = values_of(target, "mcore").values;
  if (!args.is_object()) return {};
  const Json name = args.value("ckpt_family", Json());
  if (!name.is_string() || !Family::exists(name.get<std::string>())) return {};
  MegatronModel model = megatron_model(*Family::by_name(name));
  // What some models of the family have and others lack.
  const bool own = !own_args(without_notes(args)).empty();
  if (own && model.program.ends_with("Model"))
    model.program = "code of your own";
  if (!own && model.program == "code of your own" && model.lacks.empty())
    model.program = "GPTModel";
  return model;
}

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
