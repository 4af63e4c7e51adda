// SPDX-License-Identifier: Apache-2.0
#include "convert/config/facts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "ckpt/error.h"
#include "convert/config/dialects.h"
#include "convert/config/facts_table.h"
#include "convert/config/trainer.h"

namespace ckpt::families {
namespace {

// The source of a fact that nothing states.
constexpr std::string_view kFamily = "the family";

constexpr uint64_t kMostLayers = 100'000;

bool is_off(const Json& value) {
  return value.is_null() || value == Json(false) ||
         (value.is_number() && value.get<double>() == 0);
}

bool same_value(const Json& a, const Json& b) {
  if (is_off(a) && is_off(b)) return true;
  if (a.is_number() && b.is_number()) {
    const double x = a.get<double>(), y = b.get<double>();
    return x == y ||
           std::abs(x - y) <= 1e-9 * std::max(std::abs(x), std::abs(y));
  }
  if (a.is_array() && b.is_array())
    return a.size() == b.size() &&
           std::equal(a.begin(), a.end(), b.begin(), same_value);
  return a == b;
}

// A list of one value for all layers is that value.
Json collapsed(Json list) {
  if (list.empty()) return nullptr;
  for (const Json& item : list)
    if (!same_value(item, list[0])) return list;
  return Json(list[0]);
}

class Reader {
 public:
  Reader(const std::shared_ptr<const Family>& family, const std::string& side,
         const Values& values, const Overrides& overrides)
      : side_(side), source_(values.source), written_(values.written) {
    const Dialect* dialect = family->dialect(side);
    for (const Dialect& one : family->dialects())
      if (!dialect && !one.rules.empty()) dialect = &one;
    if (!dialect) return;
    Json all = prepared(*family, side, values.values, defaulted_);
    overrides_ = all.at("trait").value("facts", Json::object());
    values_ = all;
    numbers_.emplace(family, *dialect, side, std::move(all), "", overrides);
    KeyKinds kinds;
    for (const Json& group : facts_table().at("groups"))
      for (const auto& [name, sides] : group.at("facts").items())
        if (const Json* how = expression(name, sides))
          kinds.read(expression_of(*how), kinds_said(name, sides));
    kinds.read(*dialect, side);
    // Switches that are a text in some models, as Python has it.
    for (const Json& key : facts_table().at("texts"))
      kinds.read(Expr(key.get<std::string>()), Expr::kText);
    numbers_->expect(std::move(kinds));
  }

  Facts run() {
    Facts facts;
    if (!numbers_) return facts;
    for (const Json& group : facts_table().at("groups"))
      for (const auto& [name, sides] : group.at("facts").items())
        if (const Json* how = expression(name, sides))
          add(name, *how, sides, group, facts);
    add_carried(facts);
    return facts;
  }

 private:
  const Json* expression(const std::string& name, const Json& sides) const {
    if (const auto own = overrides_.find(name); own != overrides_.end())
      if (const auto found = own->find(side_); found != own->end())
        return &*found;
    auto found = sides.find(side_);
    if (found == sides.end()) found = sides.find("");
    return found == sides.end() ? nullptr : &*found;
  }

  // What changes the function but has a name only in config.json: Megatron's
  // args hold it as ckpt_config, for the way back and for whoever builds the
  // model.
  void add_carried(Facts& facts) const {
    const Json keys = values_.at("trait").value("carry", Json::array());
    if (keys.empty() || (side_ != "hf" && side_ != "mcore")) return;
    Json from = values_;
    if (side_ == "mcore") from = values_.value("ckpt_config", Json());
    if (!from.is_object()) return;
    for (const Json& key : keys) {
      const auto name = key.get<std::string>();
      facts["config." + name] = {spelled(from.value(name, Json())),
                                 source_of(name), false};
    }
  }

  void add(const std::string& name, const Json& how, const Json& sides,
           const Json& group, Facts& facts) const {
    std::string from;
    try {
      Json value = how.is_object() ? each(how, from)
                                   : numbers_->eval(how, Indices(), from);
      if (const auto names = group.find("same"); names != group.end())
        if (value.is_string() && names->contains(value.get<std::string>()))
          value = Json(names->at(value.get<std::string>()));
      // A switch may be 1, as in Python.
      const uint8_t kinds = kinds_said(name, sides);
      if (kinds == Expr::kFlag && value.is_number()) value = truthy(value);
      facts[name] = {std::move(value), source_of(from),
                     group.value("weak", false)};
    } catch (const Error& error) {
      if (error.code() == ExitCode::kDamaged) throw;
      if (!is_unsaid(error)) damaged(name, how, error);
    }
  }

  static Expr expression_of(const Json& how) {
    return Expr((how.is_object() ? how.at("of") : how).get<std::string>());
  }

  // What a fact is in all dialects: what their literals are, and a list where
  // the ledger says so.
  static uint8_t kinds_said(const std::string& name, const Json& sides) {
    const Json& lists = facts_table().at("lists");
    uint8_t kinds =
        std::ranges::count(lists, Json(name)) != 0 ? Expr::kList : 0;
    for (const Json& side : sides) kinds |= expression_of(side).kinds();
    return static_cast<uint8_t>(kinds & ~Expr::kAny);
  }

  // True for a number that this side does not state, rather than one that makes
  // no sense.
  static bool is_unsaid(const Error& error) {
    std::string_view text = error.problem();
    const size_t quoted = text.find("\": ");  // behind the expression
    if (quoted != text.npos) text.remove_prefix(quoted + 3);
    // A text of the file is shown, which may have any words.
    if (text.find('"') != text.npos) return false;
    for (const char* absent :
         {"null ", " null", "no way to find it", "is missing"})
      if (text.find(absent) != text.npos) return true;
    return false;
  }

  // "rope.rope_theta", which is both spellings of the file, as that has it.
  std::string in_files_words(const std::string& problem) const {
    constexpr std::string_view kRope = "rope.";
    if (!problem.starts_with(kRope)) return problem;
    const std::string rest = problem.substr(kRope.size());
    const std::string key = rest.substr(0, rest.find(' '));
    for (const char* place : {"rope_parameters", "rope_scaling"})
      if (const auto found = values_.find(place);
          found != values_.end() && found->is_object() && found->contains(key))
        return fmt::format("{}.{}", place, rest);
    return values_.contains(key) ? rest : problem;
  }

  [[noreturn]] void damaged(const std::string& name, const Json& how,
                            const Error& error) const {
    const Json& text = how.is_object() ? how.at("of") : how;
    const Expr parsed(text.get<std::string>());
    std::string said;
    for (const std::string& key : parsed.names())
      if (const auto found = values_.find(key); found != values_.end())
        said += fmt::format("{}{} {}", said.empty() ? "" : ", ", key,
                            shown_fact(*found));
    throw unfaithful_error({source_, {}}, "{}: {}{}{}", name,
                           in_files_words(error.problem()),
                           said.empty() ? "" : " of ", said)
        .with_hint(
            "put that key of the configuration right; --set NAME=VALUE "
            "gives single numbers");
  }

  Json each(const Json& how, std::string& from) const {
    const auto index = how.at("each").get<std::string>();
    const uint64_t count = numbers_->count(index);
    if (count > kMostLayers) return nullptr;
    Json list = Json::array();
    for (uint64_t i = 0; i < count; ++i)
      list.push_back(numbers_->eval(how.at("of"), {{index, i}}, from));
    return collapsed(std::move(list));
  }

  // "config.json rope_theta", or what the key's absence means. The ledger's own
  // names are left out.
  std::string source_of(const std::string& from) const {
    std::set<std::string> sorted;  // compilers choose which is looked up first
    for (size_t at = 0; at < from.size();) {
      const size_t end = std::min(from.find(", ", at), from.size());
      std::string name = from.substr(at, end - at);
      at = end + 2;
      if (name.starts_with("trait.")) continue;
      if (name.starts_with("rope.") && side_ == "hf")
        name = "rope_parameters" + name.substr(4);
      if (const auto own = written_.find(name); own != written_.end())
        name = own->second;
      sorted.insert(std::move(name));
    }
    const std::string names = fmt::format("{}", fmt::join(sorted, ", "));
    if (names.empty()) return std::string(kFamily);
    if (std::ranges::count(defaulted_, names) != 0)
      return names + " by default";
    return source_.empty() ? names : source_ + " " + names;
  }

  std::string side_;
  std::string source_;
  std::map<std::string, std::string> written_;  // Values::written
  Json overrides_ = Json::object();
  Json values_;
  std::vector<std::string> defaulted_;
  std::optional<Numbers> numbers_;
};

}  // namespace

bool in_ledger(const Family& family) {
  const Json& known = facts_table().at("families");
  return family.traits().is_object() || known.contains(family.name()) ||
         std::ranges::any_of(family.bases(), [&](const std::string& base) {
           return known.contains(base);
         });
}

Facts read_facts(const std::shared_ptr<const Family>& family,
                 const std::string& side, const Values& values,
                 const Overrides& overrides) {
  if (!in_ledger(*family)) return {};
  Facts facts = Reader(family, side, values, overrides).run();
  // Args of a run say how many rows there are with padding, and often not how
  // many are tokens; -1 in Meta's files means "as the tokenizer has": whoever
  // says it contradicts nothing.
  if (const auto rows = facts.find("vocab_size");
      rows != facts.end() && rows->second.value.is_null())
    facts.erase(rows);
  return facts;
}

Facts facts_of(const Catalog& catalog) {
  const std::string side(dialect_of(catalog));
  const auto family = find_family(catalog, {});
  if (side.empty() || !family) return {};
  if (side != "hf" && side != "vllm" && !TrainerConfig::of(side)) {
    const Values own = values_of(catalog, side);
    if (!own.source.empty()) return read_facts(family, side, own);
  }
  const Values config = values_of(catalog, "hf");
  if (config.source.empty()) return {};
  return read_facts(family, "hf", config);
}

Facts config_facts_of(const Catalog& catalog) {
  const Values config = values_of(catalog, "hf");
  // OLMo-core's own file has the same name.
  if (config.source.empty() || (dialect_of(catalog).starts_with("olmo") &&
                                !config.values.contains("model_type")))
    return {};
  auto family = Family::for_config(config.values);
  if (!family) family = find_family(catalog, {});
  if (!family || !in_ledger(*family)) return {};
  Facts facts = read_facts(family, "hf", config);
  facts.merge(other_facts(*family, config));
  return facts;
}

bool is_of_class(const std::string& name, const Json& a, const Json& b) {
  const Json& taken = facts_table().at("of_class");
  return a.is_null() != b.is_null() && taken.contains(name) &&
         (a.is_null() ? b : a) == taken.at(name);
}

std::vector<FactDifference> differing(const Facts& a, const Facts& b) {
  std::vector<FactDifference> all;
  for (const auto& [name, fact] : a) {
    const auto other = b.find(name);
    if (other == b.end() || fact.weak) continue;
    if (!same_value(fact.value, other->second.value) &&
        !is_of_class(name, fact.value, other->second.value))
      all.push_back({name, fact.value, other->second.value, fact.source,
                     other->second.source});
  }
  return all;
}

std::vector<FactDifference> differing(const Facts& a, const Facts& b,
                                      const std::string& side) {
  std::vector<FactDifference> all = differing(a, b);
  std::erase_if(all, [&](const FactDifference& one) {
    for (const Json& group : facts_table().at("groups")) {
      if (!group.at("facts").contains(one.name)) continue;
      // All writers of this side state it, so absence is no default.
      const Json stated = group.value("stated", Json::array());
      if (one.source_a == kFamily && std::ranges::count(stated, Json(side)) > 0)
        return true;
      if (!group.contains("near")) continue;
      const Json& near = group.at("near");
      return near.contains(side) && one.a.is_number() && one.b.is_number() &&
             one.a <= near.at(side) && one.b <= near.at(side);
    }
    return false;
  });
  return all;
}

void check_agreement(const Facts& own, const Facts& beside,
                     const std::string& side, const std::string& path) {
  const auto differences = differing(own, beside, side);
  if (differences.empty()) return;
  const FactDifference& one = differences[0];
  throw unfaithful_error({path, {}}, "{} is {} ({}), and {} ({} beside it)",
                         one.name, shown_fact(one.a), one.source_a,
                         shown_fact(one.b), one.source_b)
      .with_hint(
          "one of the two is another model's: move that config.json away, "
          "or name the right one with --config-from DIR");
}

std::string shown_fact(const Json& value) {
  if (value.is_null() || value == Json(false)) return "none";
  std::string text =
      value.is_string()
          ? value.get<std::string>()
          : value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() > 60 ? text.substr(0, 57) + "..." : text;
}

}  // namespace ckpt::families
