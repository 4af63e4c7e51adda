#include "app/facts.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>

#include "ckpt/error.h"

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
  return families::differing(known_facts(a), known_facts(b));
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

}  // namespace ckpt::app
