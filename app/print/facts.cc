// SPDX-License-Identifier: Apache-2.0
#include "app/print/facts.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/print/console.h"
#include "ckpt/error.h"
#include "convert/translate.h"
#include "lib/text/format.h"

namespace ckpt::app {

families::Facts known_facts(const Catalog& catalog) {
  try {
    return families::facts_of(catalog);
  } catch (const Error& error) {
    spdlog::warn("{}: the model's configuration is not read: {}", catalog.path,
                 error.problem());
    return {};
  }
}

std::vector<families::FactDifference> differing_facts(const Catalog& a,
                                                      const Catalog& b) {
  const families::Facts of_a = known_facts(a), of_b = known_facts(b);
  const auto all = families::differing(of_a, of_b);
  std::vector<families::FactDifference> apart;
  for (const families::FactDifference& one : all) {
    // What the code of one side fixes, and the other has as small.
    const auto is_apart = [&](const Catalog& side) {
      const auto far = families::differing(
          of_a, of_b, std::string(families::dialect_of(side)));
      return std::ranges::any_of(
          far, [&](const auto& other) { return other.name == one.name; });
    };
    if (is_apart(a) && is_apart(b))
      apart.push_back(one);
    else
      spdlog::warn("{}: {}: nearly the same", one.name, fact_text(one));
  }
  return apart;
}

std::string fact_text(const families::FactDifference& fact) {
  return fmt::format("{} ({}) and {} ({})", families::shown_fact(fact.a),
                     fact.source_a, families::shown_fact(fact.b),
                     fact.source_b);
}

void write_fact(JsonWriter& json, const families::FactDifference& fact) {
  json.begin_object().member("kind", "fact").member("name", fact.name);
  json.key("a").tree(nlohmann::ordered_json(fact.a));
  json.key("b").tree(nlohmann::ordered_json(fact.b));
  json.member("tensor", "").member("message", fact_text(fact)).end_object();
}

void print_facts(const families::Facts& facts) {
  for (const auto& [name, fact] : facts) {
    const std::string value = families::shown_fact(fact.value);
    if (value == "none" || value == "0") continue;
    print(
        text::printable(fmt::format("  {} {} ({})", name, value, fact.source)) +
        "\n");
  }
}

void write_facts(JsonWriter& json, const families::Facts& facts) {
  json.key("facts").begin_object();
  for (const auto& [name, fact] : facts) {
    json.key(name).begin_object().key("value");
    json.tree(nlohmann::ordered_json(fact.value));
    json.member("source", fact.source).end_object();
  }
  json.end_object();
}

}  // namespace ckpt::app
