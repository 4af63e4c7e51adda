// SPDX-License-Identifier: Apache-2.0
// The keys of a configuration that the ledger does not know.
#include <algorithm>
#include <set>

#include "convert/config/facts.h"
#include "convert/config/facts_table.h"
#include "lib/text/glob.h"

namespace ckpt::families {
namespace {

constexpr size_t kDeepest = 64;

// True if the configuration is an object of objects, whose leaves have names.
bool is_nested(const std::string& side) {
  return side == "olmo_core" || side == "fairseq2";
}

// What absence is too: transformers 4 wrote "pruned_heads": {} into every
// config.json.
bool says_nothing(const Json& value) {
  return value.is_null() || value == Json(false) || value == Json("") ||
         (value.is_structured() && value.empty());
}

class Known {
 public:
  Known(const Family& family, const std::string& side) : side_(side) {
    for (const Json& glob : facts_table().at("inert").at(side))
      inert_.emplace_back(glob.get<std::string>());
    for (const Json& group : facts_table().at("groups")) add_facts(group);
    const Json traits = traits_of(family, Json());
    if (const auto own = traits.find("facts"); own != traits.end())
      for (const auto& item : own->items()) add_side(item.value());
    for (const Dialect& dialect : family.dialects()) {
      for (const auto& variable : dialect.vars)
        if (const auto how = variable.second.find(side);
            how != variable.second.end())
          add(how->second);
      if (dialect.name == side) add_keys(dialect.config, 0);
    }
  }

  bool has(const std::string& key) const {
    return names_.contains(key) ||
           std::ranges::any_of(inert_, [&](const text::Glob& glob) {
             return glob.matches(key);
           });
  }

 private:
  void add_facts(const Json& group) {
    for (const auto& item : group.at("facts").items()) add_side(item.value());
    const auto writes = group.find("write");
    if (writes != group.end() && writes->contains(side_))
      add_keys(writes->at(side_), 0);
  }

  void add_side(const Json& sides) {
    const auto how = sides.find(side_);
    if (how == sides.end()) return;
    add(how->is_object() ? how->at("of").get<std::string>()
                         : how->get<std::string>());
  }

  // "model.block.layer_norm.eps": each of its words counts as known.
  void add(const std::string& expression) {
    const Expr parsed(expression);
    for (const std::string& name : parsed.names())
      for (size_t at = 0; at < name.size();) {
        const size_t end = std::min(name.find('.', at), name.size());
        names_.insert(name.substr(at, end - at));
        at = end + 1;
      }
  }

  void add_keys(const Json& table, size_t depth) {
    if (!table.is_object() || depth > kDeepest) return;
    for (const auto& [key, value] : table.items()) {
      names_.insert(key);
      add_keys(value, depth + 1);
    }
  }

  std::string side_;
  std::set<std::string, std::less<>> names_;
  std::vector<text::Glob> inert_;
};

// Of leaves that say something.
void find_unknown(const Known& known, const Json& table, bool nested,
                  const std::string& before, size_t depth,
                  std::vector<std::string>& unknown) {
  for (const auto& [key, value] : table.items()) {
    const bool number = key.find_first_not_of("0123456789") == key.npos;
    if (says_nothing(value) || number) continue;
    if (!known.has(key))
      unknown.push_back(before + key);
    else if (nested && value.is_object() && depth < kDeepest)
      find_unknown(known, value, nested, before + key + ".", depth + 1,
                   unknown);
  }
}

// The whole config.json, and its text_config.
template <class Look>
void look_at_parts(const Json& config, Look look) {
  look(config, "");
  const auto text = config.find("text_config");
  if (text != config.end() && text->is_object()) look(*text, "text_config.");
}

// The names that the ledger's expressions use as "rope.NAME", and their
// spellings.
const std::set<std::string>& keys_of_rope() {
  static const std::set<std::string> known = [] {
    std::set<std::string> keys{"rope_type",
                               "type",
                               "rope_theta",
                               "partial_rotary_factor",
                               "mrope_interleaved",
                               "finetuned",
                               "max_position_embeddings"};  // Ministral's
    for (const Json& group : facts_table().at("groups"))
      for (const auto& item : group.at("facts").items()) {
        const auto how = item.value().find("hf");
        if (how == item.value().end() || !how->is_string()) continue;
        const Expr parsed(how->get<std::string>());
        for (const std::string& name : parsed.names())
          if (name.starts_with("rope.")) keys.insert(name.substr(5));
      }
    return keys;
  }();
  return known;
}

// In a rope for each type of layer, the keys of each type.
void find_unknown_of_rope(const Json& rope, bool by_type,
                          const std::string& before,
                          std::vector<std::string>& unknown) {
  if (!rope.is_object()) return;
  for (const auto& [key, value] : rope.items()) {
    if (by_type && key.ends_with("_attention"))
      find_unknown_of_rope(value, false, before + key + ".", unknown);
    else if (!says_nothing(value) && !keys_of_rope().contains(key))
      unknown.push_back(before + key);
  }
}

std::vector<std::string> unknown_of_hf(const Family& family,
                                       const Json& config) {
  std::vector<std::string> unknown;
  const Json& known = hf_defaults(model_type_of(family, config));
  if (known.empty()) return unknown;
  const Json traits = traits_of(family, config);
  const Json says = traits.value("says", Json::object());
  std::vector<text::Glob> inert;
  for (const Json& glob : facts_table().at("inert").at("hf"))
    inert.emplace_back(glob.get<std::string>());
  const std::set<std::string> numbers = keys_of_variables(family);
  look_at_parts(config, [&](const Json& object, const std::string& before) {
    for (const auto& [key, value] : object.items()) {
      const std::string& name = key;
      const auto matches = [&](const text::Glob& glob) {
        return glob.matches(name);
      };
      if (key == "rope_scaling" || key == "rope_parameters")
        find_unknown_of_rope(value, has_rope_by_type(traits),
                             before + key + ".", unknown);
      if (!says_nothing(value) && !known.contains(key) &&
          !numbers.contains(key) && !says.contains(key) &&
          std::ranges::none_of(inert, matches) &&
          std::ranges::count(family.hf().outer, key) == 0)
        unknown.push_back(before + key);
    }
  });
  return unknown;
}

}  // namespace

std::vector<std::string> unknown_keys(const Family& family,
                                      const std::string& side,
                                      const Json& config) {
  if (!in_ledger(family) || !config.is_object()) return {};
  if (side == "hf") return unknown_of_hf(family, config);
  if (!facts_table().at("inert").contains(side)) return {};
  std::vector<std::string> unknown;
  const Json& table = side == "olmo_core" && config.contains("model")
                          ? config.at("model")
                          : config;
  if (table.is_object())
    find_unknown(Known(family, side), table, is_nested(side), "", 0, unknown);
  return unknown;
}

Facts other_facts(const Family& family, const Values& config) {
  const Json& own = hf_defaults(model_type_of(family, config.values));
  const Known known(family, "hf");
  const Json& switches = facts_table().at("switches");
  std::vector<std::string> defaulted;
  const Json values = prepared(family, "hf", config.values, defaulted);
  const Json carried = values.at("trait").value("carry", Json::array());
  const auto is_among = [](const Json& list, const std::string& key) {
    return std::ranges::count(list, Json(key)) != 0;
  };
  Facts facts;
  const auto add = [&](const std::string& key) {
    const bool said = std::ranges::count(defaulted, key) == 0;
    facts["config." + key] = {
        spelled(values.value(key, Json())),
        said ? config.source + " " + key : key + " by default", false};
  };
  for (const Json& key : switches) add(key.get<std::string>());
  for (const auto& item : own.items())
    if (!known.has(item.key()) && !is_among(carried, item.key()))
      add(item.key());
  return facts;
}

std::vector<FactDifference> denied_keys(const Family& family,
                                        const Json& config) {
  std::vector<FactDifference> denied;
  if (!in_ledger(family) || !config.is_object()) return denied;
  const Json says = traits_of(family, config).value("says", Json::object());
  // A family that extends another may have a class that reads such a key: it is
  // a fact there.
  const Json& read = hf_defaults(model_type_of(family, config));
  look_at_parts(config, [&](const Json& object, const std::string& before) {
    for (const auto& [key, values] : says.items()) {
      const auto found = object.find(key);
      if (found == object.end() || found->is_null() || !values.is_array() ||
          read.contains(key))
        continue;
      const auto fits = [&](const Json& one) {
        return one == *found || one == Json("*");
      };
      if (std::ranges::none_of(values, fits))
        denied.push_back({before + key, *found, values, "", ""});
    }
  });
  return denied;
}

}  // namespace ckpt::families
