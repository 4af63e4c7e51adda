// SPDX-License-Identifier: Apache-2.0
#include "app/commands/family_infer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "app/commands/source.h"
#include "app/options/written.h"
#include "app/print/console.h"
#include "convert/config/facts.h"
#include "convert/config/values.h"
#include "convert/rules/check.h"
#include "convert/translate.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/shell.h"

namespace ckpt::app {
namespace {

using families::Dialect;
using families::DialectCheck;
using families::Numbers;
using FamilyPtr = std::shared_ptr<const families::Family>;
using Json = nlohmann::ordered_json;

constexpr size_t kShown = 12;

// How a known family fits the model, through one of its dialects.
struct Candidate {
  FamilyPtr family;
  std::string dialect;
  DialectCheck check;
  std::string refused;  // why its configuration can't be converted, or ""
  families::Facts facts;
  size_t odd = 0;   // facts that differ in most of those that fit
  size_t said = 0;  // facts that are stated at all
  size_t own = 0;   // of those, the ones that the family itself adds
};

struct Model {
  Catalog catalog;
  families::Values config;
  families::Shapes tensors;
  std::string type;
  std::vector<std::string> classes;
};

Model read_model(const std::string& path) {
  if (path.empty())
    throw usage_error({}, "family infer: no directory given")
        .with_hint("ckpt family infer HF_DIR");
  Model model{.catalog = open_source(path, {})};
  model.config = families::values_of(model.catalog, "hf");
  const auto type = model.config.values.find("model_type");
  if (type == model.config.values.end() || !type->is_string())
    throw unfaithful_error({path, {}}, "no config.json names a model_type")
        .with_hint("a draft needs the model's numbers: heads, experts, widths");
  model.type = type->get<std::string>();
  const auto classes = model.config.values.find("architectures");
  if (classes != model.config.values.end() && classes->is_array())
    for (const auto& one : *classes)
      if (one.is_string()) model.classes.push_back(one.get<std::string>());
  if (const FamilyPtr known = families::Family::for_config(model.config.values))
    throw usage_error({path, {}}, "model_type {} is of family {}",
                      text::printable(model.type), known->name())
        .with_hint("ckpt family check " + text::shell_path(path));
  for (const Tensor& tensor : model.catalog.tensors)
    if (tensor.kind == Kind::model)
      model.tensors.emplace(tensor.name, tensor.shape);
  return model;
}

// Nothing if the family needs numbers that the configuration lacks.
std::optional<Candidate> try_family(const Model& model,
                                    const std::string& name) {
  const FamilyPtr family = families::Family::by_name(name);
  for (const Dialect& dialect : family->dialects()) {
    if (!families::covers_family(dialect)) continue;
    try {
      const Numbers numbers(family, dialect, "hf", model.config.values,
                            model.config.source, {});
      return Candidate{
          family, dialect.name, check_dialect(numbers, model.tensors), {}};
    } catch (const Error&) {
      return std::nullopt;
    }
  }
  return std::nullopt;
}

// Compares what the family says about the configuration with it; no byte moves.
void try_config(const Model& model, Candidate& candidate) {
  try {
    families::translate(model.catalog, {.to = candidate.dialect,
                                        .family = candidate.family->name()});
  } catch (const Error& error) {
    candidate.refused = error.problem();
  }
}

bool fits(const Candidate& one) {
  return one.check.findings.empty() && one.refused.empty();
}

// A missing number hides what else is wrong.
size_t distance(const DialectCheck& check) {
  constexpr size_t kNumber = 1000;
  size_t sum = 0;
  for (const families::Finding& finding : check.findings)
    sum += finding.kind == "number" ? kNumber : 1;
  return sum;
}

std::string value_of(const families::Facts& facts, const std::string& name) {
  const auto found = facts.find(name);
  const bool none = found == facts.end() || found->second.value.is_null() ||
                    found->second.value == false;
  return none ? std::string() : found->second.value.dump();
}

// Of several families that fit, one that is like most of the others is the
// safest guess; what is peculiar to the rest is reported as a doubt.
void count_facts(std::vector<Candidate>& all) {
  std::map<std::string, std::map<std::string, size_t>> votes;
  for (const Candidate& one : all)
    if (fits(one))
      for (const auto& [name, fact] : one.facts) votes[name];
  for (auto& [name, values] : votes)
    for (const Candidate& one : all)
      if (fits(one)) ++values[value_of(one.facts, name)];
  for (Candidate& one : all) {
    for (const auto& [name, values] : votes) {
      const auto most = std::ranges::max_element(
          values, {}, [](const auto& value) { return value.second; });
      const std::string value = value_of(one.facts, name);
      const auto own = values.find(value);
      one.odd += own == values.end() || own->second != most->second;
      one.said += !value.empty();
      one.own += !value.empty() && one.facts.at(name).source == "the family";
    }
  }
}

// A family of other models may not be able to use this one's numbers.
void try_facts(const Model& model, Candidate& one) {
  try {
    one.facts = families::read_facts(one.family, "hf", model.config);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUnfaithful) throw;
    if (one.refused.empty()) one.refused = error.problem();
  }
}

// Best first: what fits, then the fewest tensors without a rule.
std::vector<Candidate> candidates(const Model& model) {
  std::vector<Candidate> all;
  for (const std::string& name : families::Family::names())
    if (auto one = try_family(model, name)) {
      if (one->check.findings.empty()) try_config(model, *one);
      try_facts(model, *one);
      all.push_back(std::move(*one));
    }
  count_facts(all);
  const auto key = [](const Candidate& one) {
    return std::tuple(!fits(one), distance(one.check), one.odd, one.said,
                      one.own, one.family->name());
  };
  std::ranges::stable_sort(all, {}, key);
  return all;
}

std::string file_name(const std::string& type) {
  std::string name;
  for (const char c : type) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    name += plain ? c : '_';
  }
  return name;
}

std::string shown(const families::Finding& finding) {
  return fmt::format("{}: {}{}{}", finding.kind, finding.tensor,
                     finding.tensor.empty() ? "" : ": ", finding.message);
}

// What other matching families would make of the same files.
std::vector<std::string> doubts(const std::vector<Candidate>& all) {
  std::vector<std::string> lines;
  for (size_t i = 1; i < all.size() && fits(all[i]); ++i) {
    std::vector<std::string> facts;
    for (const auto& one : differing(all[0].facts, all[i].facts))
      facts.push_back(
          fmt::format("{} {} or {}", one.name, one.a.dump(), one.b.dump()));
    if (!facts.empty())
      lines.push_back(fmt::format("{} fits too: {}", all[i].family->name(),
                                  fmt::join(facts, ", ")));
  }
  return lines;
}

Json draft_of(const Model& model, const Candidate& best,
              const std::vector<std::string>& notes) {
  Json dialects = Json::object();
  for (const Dialect& dialect : best.family->dialects())
    if (!dialect.rules.empty()) dialects[dialect.name] = Json::object();
  Json draft{
      {"schema", "ckpt-family/2"},
      {"family", file_name(model.type)},
      {"extends", best.family->name()},
      {"notes", notes},
      {"hf", {{"model_type", {model.type}}, {"architectures", model.classes}}},
      {"dialects", std::move(dialects)}};
  if (notes.empty()) draft.erase("notes");
  if (model.classes.empty()) draft["hf"].erase("architectures");
  return draft;
}

void write_draft(const std::string& file, const std::string& text,
                 const OutputOptions& output) {
  if (file.empty()) return print(text);
  write_output(file, "--draft", output, text);
}

}  // namespace

ExitCode infer_family(const InferOptions& options) {
  const Model model = read_model(options.path);
  const std::vector<Candidate> all = candidates(model);
  if (all.empty())
    throw unfaithful_error({options.path, {}},
                           "no known family can take its numbers from {}",
                           model.config.source)
        .with_hint("docs/families.md: write one by hand");
  const Candidate& best = all.front();
  const std::string& name = best.family->name();
  std::vector<std::string> notes;
  if (fits(best)) {
    say(
        text::printable(fmt::format("{}: {} tensors have the names and shapes "
                                    "of family {}",
                                    model.type, best.check.used, name)));
    notes = doubts(all);
    for (const std::string& line : notes) say(text::printable(line));
    say("names and shapes can't tell what a class computes: compare the logits "
        "of a small model before trusting the draft");
  } else {
    say(text::printable(fmt::format(
        "{}: no known family fits; the nearest is {}{}{}", model.type, name,
        best.refused.empty() ? "" : ": ", best.refused)));
    for (const families::Finding& finding : best.check.findings)
      if (notes.size() < kShown) notes.push_back(shown(finding));
    if (!best.refused.empty()) notes.push_back(best.refused);
    for (const std::string& line : notes) say("  " + text::printable(line));
    if (best.check.findings.size() > kShown)
      say(fmt::format("  and {} more", best.check.findings.size() - kShown));
  }
  write_draft(options.file, draft_of(model, best, notes).dump(2) + "\n",
              options.output);
  return fits(best) ? ExitCode::kDone : ExitCode::kNegative;
}

}  // namespace ckpt::app
