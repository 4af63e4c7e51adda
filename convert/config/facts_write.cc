// SPDX-License-Identifier: Apache-2.0
// Makes a configuration say the facts of another.
#include <fmt/format.h>

#include <algorithm>

#include "ckpt/error.h"
#include "convert/config/dialects.h"
#include "convert/config/facts.h"
#include "convert/config/facts_table.h"
#include "convert/config/values.h"
#include "lib/text/format.h"

namespace ckpt::families {
namespace {

// What the names of "write" stand for: facts, traits, and windows in the form
// that configurations have them.
class FactScope : public Expr::Scope {
 public:
  FactScope(const Facts& facts, const Json& traits) {
    for (const auto& [name, fact] : facts) values_[name] = fact.value;
    for (const auto& [name, value] : traits.items())
      values_["trait." + name] = value;
    add_windows();
    add_rope_layers();
  }

  const Json& value(const std::string& name) const override {
    static const Json nothing;
    const auto found = values_.find(name);
    return found == values_.end() ? nothing : found->second;
  }

 private:
  void add_windows() {
    const Json window = value("window");
    const auto is_size = [](const Json& size) {
      return size.is_number_integer() && size > 0;
    };
    if (is_size(window)) values_["window_of"] = window;
    const Json layers = value("layers");
    if (!layers.is_number_integer() || layers < 0 || layers > 100000) return;
    Json types = Json::array(), list = Json::array();
    for (size_t l = 0; l < layers.get<size_t>(); ++l) {
      const bool known = window.is_array() && l < window.size();
      const Json& size = known ? window[l] : window;
      if (known && is_size(size)) values_["window_of"] = size;
      types.push_back(is_size(size) ? "sliding_attention" : "full_attention");
      list.push_back(is_size(size) ? 1 : 0);
    }
    values_["window_types"] = std::move(types);
    if (window.is_array()) values_["window_list"] = std::move(list);
  }

  // Adds the layers with rotary positions, given those without.
  void add_rope_layers() {
    const Json none = value("no_rope_layers"), layers = value("layers");
    if (none.is_null() || !layers.is_number_integer() || layers < 0 ||
        layers > 100000)
      return;
    Json list = Json::array();
    for (size_t l = 0; l < layers.get<size_t>(); ++l) {
      const Json& one = none.is_array() && l < none.size() ? none[l] : none;
      list.push_back(one == Json(1) ? 0 : 1);
    }
    values_["rope_layers"] = std::move(list);
  }

  std::map<std::string, Json> values_;
};

Json made(const Json& entry, const FactScope& scope) {
  if (entry.is_string()) {
    const auto text = entry.get<std::string>();
    return text.starts_with('=') ? Expr(text.substr(1)).eval(scope) : entry;
  }
  if (entry.is_array()) {
    Json list = Json::array();
    for (const Json& item : entry) {
      list.push_back(made(item, scope));
      if (list.back().is_null()) return nullptr;
    }
    return list;
  }
  if (!entry.is_object()) return entry;
  Json object = Json::object();
  for (const auto& [key, item] : entry.items())
    if (Json value = made(item, scope); !value.is_null())
      object[key] = std::move(value);
  return object.empty() ? Json() : object;
}

class Sayer {
 public:
  Sayer(const std::shared_ptr<const Family>& family, const std::string& side,
        const Facts& facts, std::string what,
        const std::vector<std::string>& allow, Json& table)
      : family_(family),
        side_(side),
        facts_(facts),
        what_(std::move(what)),
        allow_(allow),
        table_(table),
        traits_(traits_of(*family, table)),
        scope_(facts, traits_) {}

  Unsaid run() {
    choose_type();
    const auto before = missing();
    for (const Json& group : facts_table().at("groups"))
      if (side_ == "mcore" || concerns(group, before)) write(group);
    write_carried();
    const Facts said = read_facts(family_, side_, {table_, ""});
    Unsaid all{.near = differing(facts_, said), .allowed = {}};
    auto after = differing(facts_, said, side_);
    const auto among = [](const std::vector<FactDifference>& some) {
      return [&some](const FactDifference& one) {
        return std::ranges::count(some, one.name, &FactDifference::name) != 0;
      };
    };
    std::erase_if(all.near, among(after));
    for (FactDifference& one : after)
      if (is_allowed(allow_, one.name)) all.allowed.push_back(one);
    std::erase_if(after, among(all.allowed));
    if (!after.empty()) refuse(after);
    return all;
  }

 private:
  std::vector<FactDifference> missing() const {
    return differing(facts_, read_facts(family_, side_, {table_, ""}));
  }

  // OLMo 3 is OLMo 2 with windows, but transformers has a class for each.
  void choose_type() {
    const auto windowed = traits_.find("windowed");
    if (side_ != "hf" || windowed == traits_.end() ||
        scope_.value("window_of").is_null())
      return;
    table_.update(*windowed);
    traits_ = traits_of(*family_, table_);
    scope_ = FactScope(facts_, traits_);
  }

  static bool concerns(const Json& group,
                       const std::vector<FactDifference>& differences) {
    return std::ranges::any_of(differences, [&](const FactDifference& one) {
      return group.at("facts").contains(one.name);
    });
  }

  void write(const Json& group) {
    const auto writes = group.find("write");
    if (writes == group.end() || !writes->contains(side_)) return;
    // What the source does not say remains as in the family's table.
    const auto said = [&](const auto& item) {
      return facts_.contains(item.key());
    };
    const auto facts = group.at("facts").items();
    if (std::none_of(facts.begin(), facts.end(), said)) return;
    for (const auto& [key, entry] : writes->at(side_).items())
      put(key, made(entry, scope_));
  }

  void write_carried() {
    for (const Json& key : traits_.value("carry", Json::array())) {
      const auto name = key.get<std::string>();
      const auto fact = facts_.find("config." + name);
      if (fact == facts_.end()) continue;
      const bool outer = std::ranges::count(family_->hf().outer, name) != 0;
      if (side_ == "hf" && outer && !fact->second.value.is_null())
        table_[name] = fact->second.value;
      else if (side_ == "hf")
        put(name, fact->second.value);
      if (side_ == "mcore" && !fact->second.value.is_null())
        table_["ckpt_config"][name] = fact->second.value;
    }
  }

  void put(const std::string& key, Json value) {
    if (side_ == "hf") {
      const Json& own = hf_defaults(model_type_of(*family_, table_));
      const bool rotary = key.starts_with("ro") || key.starts_with("partial");
      if (!own.contains(key) && !rotary) return;
      // Absence would mean the class's scaling.
      if (key == "rope_scaling" && value.is_null() &&
          own.value("rope", Json::object()).contains("rope_type"))
        value = {{"rope_type", "default"}};
      // Absence would mean the class's default.
      if (value.is_null() && own.contains(key) && !own.at(key).is_null()) {
        table_[key] = nullptr;
        return;
      }
    }
    if (value.is_null() && !needs_null(key))
      table_.erase(key);
    else
      table_[key] = std::move(value);
  }

  // True if, in families with a trait, the class has a default other than none.
  bool needs_null(const std::string& key) const {
    const Json& nulls = facts_table().at("nulls");
    if (!nulls.contains(side_)) return false;
    const Json& keys = nulls.at(side_);
    const auto trait = keys.find(key);
    return trait != keys.end() && traits_.contains(trait->get<std::string>());
  }

  std::string possible(const std::string& name) const {
    for (const Json& group : facts_table().at("groups"))
      if (group.at("facts").contains(name) && group.contains("can"))
        return group.at("can").value(side_, "");
    return {};
  }

  [[noreturn]] void refuse(const std::vector<FactDifference>& all) const {
    std::string list;
    for (const FactDifference& one : all)
      list += fmt::format("{}{} is {} ({}), {} would mean {}",
                          list.empty() ? "" : "; ", one.name, shown_fact(one.a),
                          one.source_a, what_, shown_fact(one.b));
    std::string can = possible(all[0].name);
    throw unfaithful_error({}, "{}", text::printable(list))
        .with_hint(fmt::format(
            "{} of {} can say: {}", what_, family_->name(),
            can.empty() ? all[0].name + " " + shown_fact(all[0].b) : can));
  }

  std::shared_ptr<const Family> family_;
  std::string side_;
  const Facts& facts_;
  std::string what_;
  const std::vector<std::string>& allow_;
  Json& table_;
  Json traits_;
  FactScope scope_;
};

}  // namespace

Unsaid say_facts(const std::shared_ptr<const Family>& family,
                 const std::string& side, const Facts& facts,
                 const std::string& what, const std::vector<std::string>& allow,
                 Json& table) {
  if (facts.empty() || !in_ledger(*family)) return {};
  return Sayer(family, side, facts, what, allow, table).run();
}

namespace {

// True for the value that Megatron uses without the flag.
bool is_default(const std::string& key, const Json& value) {
  const bool off_by_flag =
      key == "bias_gelu_fusion" || key == "bert_binary_head";
  if (value.is_null() || value == Json(off_by_flag)) return true;
  if (key == "norm_epsilon") return value == 1e-5;
  if (key == "glu_linear_offset") return value == 0;
  if (key == "softmax_type") return value == "vanilla";
  return key == "moe_router_score_function" && value == "softmax";
}

// (3, 0) is written as 3,0: Megatron's parser splits at commas.
std::string flag_value(const std::string& key, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  const std::string text = value.dump();
  if (key != "window_size" || !value.is_array()) return text;
  return text.substr(1, text.size() - 2);
}

// A run's args have all the defaults of Megatron's argument reader, including
// those for latent attention, delta nets and state space mixers in models
// without them.
bool is_of_other_models(const std::string& key, const Json& args) {
  const auto says = [&](const Json& part) {
    const Json value = args.value(part.get<std::string>(), Json());
    return !value.is_null() && value != false;
  };
  for (const Json& one : facts_table().at("load_with_if"))
    if (std::ranges::count(one.at("keys"), Json(key)) != 0)
      return std::ranges::none_of(one.at("has"), says);
  return false;
}

Json args_in(const Catalog& target) {
  if (dialect_of_format(target.format) != "mcore") return Json::object();
  Json args = values_of(target, "mcore").values;
  return args.is_object() ? args : Json::object();
}

}  // namespace

std::vector<std::string> load_flags(const Catalog& target) {
  std::vector<std::string> flags;
  const Json args = args_in(target);
  for (const auto& [key, flag] : facts_table().at("load_with").items()) {
    const auto found = args.find(key);
    if (found == args.end() || is_default(key, *found) ||
        is_of_other_models(key, args))
      continue;
    flags.push_back(flag);
    if (!found->is_boolean()) flags.push_back(flag_value(key, *found));
  }
  return flags;
}

Json load_code(const Catalog& target) {
  Json values = Json::object();
  const Json args = args_in(target);
  for (const auto& [key, without] : facts_table().at("load_in_code").items()) {
    const auto found = args.find(key);
    if (found != args.end() && !found->is_null() && *found != without)
      values[key] = *found;
  }
  return values;
}

}  // namespace ckpt::families
