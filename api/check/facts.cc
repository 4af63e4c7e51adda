// SPDX-License-Identifier: Apache-2.0
#include "api/check/facts.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/error.h"
#include "convert/translate.h"
#include "convert/values.h"
#include "reshard/prove.h"

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

namespace {

// The facts of config.json, if there is one. Damage in it was already reported.
std::optional<families::Facts> config_facts(const Catalog& catalog) {
  try {
    families::Facts facts = families::config_facts_of(catalog);
    if (!facts.empty()) return facts;
  } catch (const Error&) {
    return std::nullopt;
  }
  return std::nullopt;
}

// Adds the facts that differ in what either dialect can state. Where one
// dialect's code fixes a small number and the other's is as small, only warns.
void add_apart(const families::Facts& of_a, const std::string& side_a,
               const families::Facts& of_b, const std::string& side_b,
               const Engine& engine,
               std::vector<families::FactDifference>& apart) {
  const auto has = [](const std::vector<families::FactDifference>& list,
                      const std::string& name) {
    return std::ranges::count(list, name, &families::FactDifference::name) != 0;
  };
  const auto far_a = families::differing(of_a, of_b, side_a);
  const auto far_b = families::differing(of_a, of_b, side_b);
  for (families::FactDifference& one : families::differing(of_a, of_b)) {
    if (has(apart, one.name)) continue;
    if (has(far_a, one.name) && has(far_b, one.name))
      apart.push_back(std::move(one));
    else
      engine.warn(
          fmt::format("{}: {}: nearly the same", one.name, fact_text(one)));
  }
}

const Tensor* with_ending(const Catalog& catalog,
                          std::initializer_list<std::string_view> endings) {
  for (const Tensor& tensor : catalog.tensors)
    for (const std::string_view ending : endings)
      if (tensor.kind == Kind::model && tensor.name.ends_with(ending))
        return &tensor;
  return nullptr;
}

const Tensor* head_of(const Catalog& catalog) {
  return with_ending(
      catalog, {"lm_head.weight", "embed_out.weight", "output_layer.weight"});
}

const Tensor* embedding_of(const Catalog& catalog) {
  return with_ending(catalog, {"embed_tokens.weight", "embed_in.weight",
                               "wte.weight", "word_embeddings.weight"});
}

// True if a model that is said to be tied has an output layer of its own, which
// is then unused.
bool has_unused_head(const Catalog& catalog, const Engine& engine) {
  const Tensor* head = head_of(catalog);
  const Tensor* embedding = embedding_of(catalog);
  if (!head || !embedding || (head->tie != 0 && head->tie == embedding->tie))
    return false;
  Catalog both = catalog;
  both.redundant = {{*head, {}, *embedding, "tied"}};
  locate(both);
  reshard::RunOptions run;
  run.max_mem = std::max<uint64_t>(engine.max_mem / 4, 1 << 20);
  try {
    reshard::prove_redundant(both, run);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUnfaithful) throw;
    return true;
  }
  return false;
}

// Ties are weak facts: they change nothing about a head that equals the
// embedding.
void compare_ties(const Catalog& a, const Catalog& b,
                  const families::Facts& of_a, const families::Facts& of_b,
                  const Engine& engine,
                  std::vector<families::FactDifference>& all) {
  const auto x = of_a.find("tied"), y = of_b.find("tied");
  if (x == of_a.end() || y == of_b.end()) return;
  const families::Fact &one = x->second, &other = y->second;
  if (one.value == other.value || !one.value.is_boolean() ||
      !other.value.is_boolean())
    return;
  const Catalog& bound = one.value == true ? a : b;
  const Catalog& free = one.value == true ? b : a;
  const bool lacks_head = !head_of(free) && embedding_of(free);
  if (!lacks_head && !has_unused_head(bound, engine)) return;
  all.push_back({"tied", one.value, other.value, one.source, other.source});
}

}  // namespace

std::vector<families::FactDifference> differing_facts(const Catalog& a,
                                                      const Catalog& b,
                                                      const Engine& engine) {
  const families::Facts of_a = known_facts(a, engine);
  const families::Facts of_b = known_facts(b, engine);
  std::vector<families::FactDifference> apart;
  compare_ties(a, b, of_a, of_b, engine, apart);
  const std::string side_a(families::dialect_of(a));
  const std::string side_b(families::dialect_of(b));
  add_apart(of_a, side_a, of_b, side_b, engine, apart);
  // A config.json of transformers beside them describes the model, too.
  const auto config_a = config_facts(a);
  const auto config_b = config_facts(b);
  if (config_a && config_b)
    add_apart(*config_a, "hf", *config_b, "hf", engine, apart);
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
      continue;  // whatever needs a damaged configuration reports it
    }
  }
  return std::nullopt;
}

}  // namespace ckpt::library
