// SPDX-License-Identifier: Apache-2.0
#include "ckpt/check.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <utility>

#include "api/check/as_numbers.h"
#include "api/check/compare.h"
#include "api/check/facts.h"
#include "api/check/integrity.h"
#include "api/check/meet.h"
#include "api/check/read_all.h"
#include "api/edit/select.h"
#include "api/memory.h"
#include "lib/decoding.h"

namespace ckpt {

Progress library::stages_told(
    const std::function<void(uint64_t done, uint64_t total)>& tell) {
  struct State {
    std::atomic<uint64_t> done = 0, total = 0;
  };
  const auto state = std::make_shared<State>();
  Progress progress;
  progress.on_begin = [state](std::string_view, uint64_t total) {
    state->done = 0;
    state->total = total;
  };
  progress.on_advance = [state, tell](uint64_t bytes) {
    tell(state->done += bytes, state->total);
  };
  return progress;
}

namespace {

library::Engine engine_of(const ReadOptions& options) {
  library::Engine engine{.threads = options.threads,
                         .max_mem = options.max_mem,
                         .cuda = options.cuda,
                         .io = options.io,
                         .note = options.note};
  if (options.progress)
    engine.progress = [tell = options.progress] {
      return library::stages_told(tell);
    };
  return engine;
}

}  // namespace

Report verify(const std::string& path, const VerifyOptions& options) {
  if (options.quick && (options.deep || options.finite))
    throw usage_error({}, "quick reads no tensor, deep and finite do");
  if (options.quick && options.seal)
    throw usage_error({}, "quick reads no tensor, a seal has all of them");
  return library::check_integrity(
      path, options.selection,
      {.deep = options.deep,
       .finite = options.finite,
       .quick = options.quick,
       .strict = options.strict,
       .seal = options.seal,
       .from = options.open.format,
       .read = {.family = options.open.family,
                .shard_dims_file = options.open.shard_dims_file,
                .restrict_globals = options.open.restrict_globals}},
      engine_of(options.read));
}

bool is_note(const Difference& difference) {
  return difference.kind == "padding" || difference.kind == "tied" ||
         difference.kind == "not_compared";
}

Distance& Distance::operator+=(const Distance& other) {
  elements += other.elements;
  differing += other.differing;
  max_abs = std::max(max_abs, other.max_abs);
  max_rel = std::max(max_rel, other.max_rel);
  squares += other.squares;
  squares_a += other.squares_a;
  squares_b += other.squares_b;
  products += other.products;
  return *this;
}

double relative_l2(const Distance& distance) {
  if (distance.squares == 0) return 0;
  const double ratio = std::sqrt(distance.squares / distance.squares_a);
  return std::isnan(ratio) ? std::numeric_limits<double>::infinity() : ratio;
}

double rms(const Distance& distance) {
  const uint64_t count = std::max<uint64_t>(distance.elements, 1);
  return std::sqrt(distance.squares / static_cast<double>(count));
}

double cosine(const Distance& distance) {
  // Rounding may take it beyond one.
  return std::clamp(distance.products / (std::sqrt(distance.squares_a) *
                                         std::sqrt(distance.squares_b)),
                    -1.0, 1.0);
}

bool Comparison::same() const {
  return std::ranges::all_of(differences, is_note);
}

Comparison diff(Catalog a, Catalog b, const DiffOptions& options) {
  library::check_catalog(a);
  library::check_catalog(b);
  const library::Engine engine = engine_of(options.read);
  library::select_both(a, b, options.selection);
  const auto facts = library::differing_facts(a, b, engine);
  const uint64_t vocabulary = std::max(library::vocabulary_of(a).value_or(0),
                                       library::vocabulary_of(b).value_or(0));
  // Under common names, objects are those that one side made.
  const bool met = library::meet(a, b, options.family, engine);
  const library::ReadAsNumbers read = library::as_numbers(a, b, engine);
  Comparison result = library::compare(
      std::move(a), std::move(b),
      {.rtol = options.rtol,
       .atol = options.atol,
       .numeric = options.numeric,
       .objects = options.objects && !met && !options.selection.model_only,
       .describe = options.describe,
       .arrangements = options.arrangements,
       .vocabulary = vocabulary},
      engine);
  library::say_read(read, result);
  for (const families::FactDifference& fact : facts)
    result.differences.push_back({"fact", fact.name, library::fact_text(fact)});
  return result;
}

std::map<std::string, std::string> digest(Catalog catalog,
                                          const ReadOptions& options) {
  library::check_catalog(catalog);
  take_stored(catalog);
  const library::Reading reading =
      library::read_all(catalog, engine_of(options));
  std::map<std::string, std::string> digests;
  for (size_t i = 0; i < catalog.tensors.size(); ++i)
    digests[catalog.tensors[i].name] = reading.digests[i].hex();
  return digests;
}

std::map<std::string, ModelFact> facts(const Catalog& catalog) {
  std::map<std::string, ModelFact> facts;
  for (const auto& [name, fact] : families::facts_of(catalog))
    facts[name] = {fact.value.dump(), fact.source};
  return facts;
}

}  // namespace ckpt
