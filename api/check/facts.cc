// SPDX-License-Identifier: Apache-2.0
#include "api/check/facts.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/error.h"
#include "convert/translate.h"
#include "convert/values.h"

namespace ckpt::library {

families::Facts known_facts(const Catalog& catalog, const Engine& engine) {
  try {
    return families::facts_of(catalog);
  } catch (const Error& error) {
    engine.warn(fmt::format("{}: the model's configuration is not read: {}",
                            catalog.path, error.problem()));
    return {};
  }
}

std::vector<families::FactDifference> differing_facts(const Catalog& a,
                                                      const Catalog& b,
                                                      const Engine& engine) {
  const families::Facts of_a = known_facts(a, engine);
  const families::Facts of_b = known_facts(b, engine);
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
      engine.warn(
          fmt::format("{}: {}: nearly the same", one.name, fact_text(one)));
  }
  return apart;
}

std::string fact_text(const families::FactDifference& fact) {
  return fmt::format("{} ({}) and {} ({})", families::shown_fact(fact.a),
                     fact.source_a, families::shown_fact(fact.b),
                     fact.source_b);
}

std::optional<uint64_t> vocabulary_of(const Catalog& catalog) {
  for (const std::string_view side :
       {families::dialect_of(catalog), std::string_view("mcore"),
        std::string_view("hf"), std::string_view("fairseq2"),
        std::string_view("meta"), std::string_view("olmo_core")}) {
    try {
      if (side.empty()) continue;
      const families::Json values = families::values_of(catalog, side).values;
      const auto found = values.find("vocab_size");
      if (found != values.end() && found->is_number_unsigned())
        return found->get<uint64_t>();
    } catch (const Error&) {
      continue;  // what needs a damaged configuration tells of it
    }
  }
  return std::nullopt;
}

}  // namespace ckpt::library
