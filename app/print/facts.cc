// SPDX-License-Identifier: Apache-2.0
#include "app/print/facts.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "api/check/facts.h"
#include "app/print/console.h"
#include "lib/text/format.h"

namespace ckpt::app {

void write_fact(JsonWriter& json, const families::FactDifference& fact) {
  json.begin_object().member("kind", "fact").member("name", fact.name);
  json.key("a").tree(nlohmann::ordered_json(fact.a));
  json.key("b").tree(nlohmann::ordered_json(fact.b));
  json.member("tensor", "")
      .member("message", library::fact_text(fact))
      .end_object();
}

void print_facts(const families::Facts& facts) {
  for (const auto& [name, fact] : facts) {
    const std::string value = families::shown_fact(fact.value);
    if (value == "none" || value == "0") continue;
    print_folded(
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
