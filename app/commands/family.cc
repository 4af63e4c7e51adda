// SPDX-License-Identifier: Apache-2.0
// Families: which there are, what one says, and whether a model fits its own.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/command.h"
#include "app/commands/family_infer.h"
#include "app/commands/source.h"
#include "app/options/options.h"
#include "app/options/read_paths.h"
#include "app/print/console.h"
#include "app/print/facts.h"
#include "app/print/json_writer.h"
#include "app/print/table.h"
#include "convert/config/values.h"
#include "convert/whole/whole.h"
#include "lib/text/format.h"

namespace ckpt::app {
namespace {

using families::Dialect;
using families::DialectCheck;
using FamilyPtr = std::shared_ptr<const families::Family>;

constexpr std::string_view kFamilyExamples =
    "ckpt family list\n"
    "ckpt family show qwen3_moe\n"
    "ckpt family check HF_DIR                # does every tensor have a rule?\n"
    "ckpt family check HF_DIR --family-file mine.json\n"
    "ckpt family infer HF_DIR -o mine.json   # a first draft of one's own";

std::string joined(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names)
    all += (all.empty() ? "" : ", ") + text::printable(name);
  return all;
}

std::vector<std::string> dialect_names(const families::Family& family) {
  std::vector<std::string> names;
  for (const Dialect& dialect : family.dialects())
    names.push_back(dialect.name);
  return names;
}

// "cat(dim 1), t"
std::string ops_text(const families::Rule& rule) {
  std::string all;
  for (const families::Op& op : rule.ops) {
    std::string params;
    for (const auto& [key, value] : op.params.items())
      params += (params.empty() ? "" : ", ") + key + " " +
                (value.is_string() ? value.get<std::string>() : value.dump());
    all += (all.empty() ? "" : ", ") + op.name +
           (params.empty() ? "" : "(" + params + ")");
  }
  return all.empty() ? "copy" : all;
}

std::string cut_text(const families::Rule& rule) {
  if (!rule.tp) return "";
  std::string text = rule.tp->expert ? "etp " : "tp ";
  text += rule.tp->dim;
  if (!rule.tp->sizes.empty())
    text += fmt::format(" of parts {}", fmt::join(rule.tp->sizes, ", "));
  else if (rule.tp->parts > 1)
    text += fmt::format(" of {} parts", rule.tp->parts);
  return text;
}

std::string condition_text(const families::Rule& rule) {
  std::string text;
  const auto add = [&](bool flag, const std::string& word) {
    if (flag) text += (text.empty() ? "" : "; ") + word;
  };
  add(!rule.when.empty(), "if " + rule.when);
  add(rule.optional, "optional");
  add(rule.alias, "copy of another");
  add(rule.dtype.has_value(),
      rule.dtype ? "always " + std::string(name(*rule.dtype)) : "");
  return text;
}

// One line for each, or two if the terminal is too narrow.
void print_rules(const Dialect& dialect) {
  Table table(
      {Align::kLeft, Align::kLeft, Align::kLeft, Align::kLeft, Align::kLeft},
      2);
  std::string narrow;
  for (const families::Rule& rule : dialect.rules) {
    const std::string to = text::printable(rule.to);
    std::vector<std::string> cells{"<- " + joined(rule.hf), ops_text(rule),
                                   cut_text(rule), condition_text(rule)};
    narrow += "  " + to + "\n     ";
    for (const std::string& cell : cells)
      if (!cell.empty()) narrow += " " + cell;
    narrow += "\n";
    cells.insert(cells.begin(), to);
    table.row(std::move(cells));
  }
  if (stdout_is_terminal() && table.width() > stdout_width())
    print_folded(narrow);
  else
    print(table.text(0));
}

void print_dialect(const Dialect& dialect) {
  print("\n" + styled(dialect.name, Style::kBold) + "\n");
  for (const std::string& note : dialect.notes)
    print_folded("  " + text::printable(note) + "\n");
  Table vars({Align::kLeft, Align::kLeft, Align::kLeft}, 2);
  for (const auto& [name, definition] : dialect.vars)
    for (const auto& [side, expression] : definition)
      if (side.empty() || side == "hf" || side == dialect.name)
        vars.row({name, side, text::printable(expression)});
  print_folded(vars.text(0));
  print_rules(dialect);
}

class FamilyCommand : public Command {
 public:
  std::string_view name() const override { return "family"; }
  std::string_view help() const override {
    return "list, show, check and draft model families";
  }
  std::string_view examples() const override { return kFamilyExamples; }
  void add_options(CLI::App& app) override;
  ExitCode run() override;

 private:
  ExitCode list() const;
  ExitCode show() const;
  ExitCode check() const;
  FamilyPtr chosen() const;
  families::Overrides overrides() const;
  void print_checks(const FamilyPtr& family,
                    const std::vector<DialectCheck>& checks) const;

  std::string action_;
  std::string what_;
  std::string family_;
  std::string file_;
  std::string draft_;
  std::vector<std::string> set_;
};

void FamilyCommand::add_options(CLI::App& app) {
  app.add_option("ACTION", action_, "list, show, check or infer")
      ->required()
      ->check(CLI::IsMember({"list", "show", "check", "infer"}))
      ->group("Arguments");
  app.add_option("WHAT", what_,
                 "show: a family's name; check, infer: a directory of Hugging "
                 "Face")
      ->group("Arguments");
  const std::string group = "Family";
  app.add_option("--family", family_, "Check against this one")
      ->type_name("NAME")
      ->group(group);
  names_file(app.add_option("--family-file", file_, "A family of your own"))
      ->type_name("FILE")
      ->group(group);
  app.add_option("-o,--draft", draft_, "infer: where the family's file goes")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--set", set_, "Override a model parameter")
      ->type_name("NAME=VALUE")
      ->group(group);
}

// The family named by the options; null if there is none.
FamilyPtr FamilyCommand::chosen() const {
  if (!file_.empty()) return families::Family::from_file(file_);
  if (!family_.empty()) return families::Family::by_name(family_);
  return nullptr;
}

ExitCode FamilyCommand::list() const {
  JsonWriter json;
  json.begin_document("family").key("families").begin_array();
  Table table({Align::kLeft, Align::kLeft, Align::kLeft});
  for (const std::string& name : families::Family::names()) {
    const FamilyPtr family = families::Family::by_name(name);
    const std::vector<std::string> dialects = dialect_names(*family);
    table.row({name, joined(dialects), joined(family->hf().model_types)});
    json.begin_object().member("name", name).key("dialects").begin_array();
    for (const std::string& dialect : dialects) json.value(dialect);
    json.end_array().key("model_types").begin_array();
    for (const std::string& type : family->hf().model_types) json.value(type);
    json.end_array().end_object();
  }
  json.end_array().end_object();
  table.give_up({1});
  print(output.json ? std::move(json).text()
                    : table.text(stdout_is_terminal() ? stdout_width() : 0));
  return ExitCode::kDone;
}

ExitCode FamilyCommand::show() const {
  FamilyPtr family = chosen();
  if (!family && what_.empty())
    throw usage_error({}, "family show: no NAME given")
        .with_hint("ckpt family list shows their names");
  if (!family) family = families::Family::by_name(what_);
  if (output.json) {
    nlohmann::ordered_json dialects;
    for (const Dialect& dialect : family->dialects())
      dialects[dialect.name] = dialect.section;
    JsonWriter json;
    json.begin_document("family").member("name", family->name());
    json.key("dialects");
    json.tree(dialects).end_object();
    print(std::move(json).text());
    return ExitCode::kDone;
  }
  print(styled(family->name(), Style::kBold) + "  " +
        joined(family->hf().model_types) + "  " +
        joined(family->hf().architectures) + "\n");
  for (const std::string& note : family->notes())
    print_folded("  " + text::printable(note) + "\n");
  for (const Dialect& dialect : family->dialects()) print_dialect(dialect);
  return ExitCode::kDone;
}

families::Overrides FamilyCommand::overrides() const {
  families::Overrides overrides;
  for (const std::string& one : set_) {
    const size_t sign = one.find('=');
    if (sign == one.npos)
      throw usage_error({}, "--set {}: expected NAME=VALUE",
                        text::printable(one));
    overrides[one.substr(0, sign)] = one.substr(sign + 1);
  }
  return overrides;
}

void FamilyCommand::print_checks(
    const FamilyPtr& family, const std::vector<DialectCheck>& checks) const {
  print(styled(family->name(), Style::kBold) + "\n");
  std::vector<std::string> told;
  for (const DialectCheck& check : checks)
    for (const std::string& number : check.numbers)
      if (std::ranges::count(told, number) == 0) {
        told.push_back(number);
        print_folded("  " + number + "\n");
      }
  for (const DialectCheck& check : checks) {
    for (const families::Finding& finding : check.findings)
      print_folded(
          text::printable(fmt::format(
              "{}: {}: {}{}{}", check.dialect, finding.kind, finding.tensor,
              finding.tensor.empty() ? "" : ": ", finding.message)) +
          (finding.hint.empty() ? "" : " (" + finding.hint + ")") + "\n");
    print_folded(
        fmt::format("{}: {}: {} tensors become {}, {}\n", check.dialect,
                    check.findings.empty() ? styled("fits", Style::kGreen)
                                           : styled("differs", Style::kRed),
                    check.used, check.made,
                    text::counted(check.findings.size(), "problem")));
  }
}

std::string check_json(const FamilyPtr& family,
                       const std::vector<DialectCheck>& checks,
                       const families::Facts& facts) {
  JsonWriter json;
  const bool ok = std::ranges::all_of(
      checks, [](const DialectCheck& check) { return check.findings.empty(); });
  json.begin_document("family").member("ok", ok).member("family",
                                                        family->name());
  write_facts(json, facts);
  json.key("dialects").begin_array();
  for (const DialectCheck& check : checks) {
    json.begin_object().member("dialect", check.dialect);
    json.member("tensors", uint64_t{check.used});
    json.member("made", uint64_t{check.made});
    json.key("numbers").begin_array();
    for (const std::string& number : check.numbers) json.value(number);
    json.end_array().key("problems").begin_array();
    for (const families::Finding& finding : check.findings) {
      json.begin_object().member("kind", finding.kind);
      json.text_or_null("tensor", finding.tensor);
      json.member("message", finding.message);
      json.text_or_null("hint", finding.hint).end_object();
    }
    json.end_array().end_object();
  }
  json.end_array().end_object();
  return std::move(json).text();
}

ExitCode FamilyCommand::check() const {
  if (what_.empty())
    throw usage_error({}, "family check: no directory given")
        .with_hint("ckpt family check HF_DIR");
  SourceOptions source;
  const Catalog catalog = open_source(what_, source);
  const families::Values config = families::values_of(catalog, "hf");
  FamilyPtr family = chosen();
  if (!family) family = families::Family::for_config(config.values);
  if (!family)
    throw unfaithful_error({what_, {}}, "{}",
                           config.source.empty()
                               ? "no config.json names the model's family"
                               : "no family has this model_type")
        .with_hint("name it: --family NAME, or --family-file FILE");
  const auto checks = families::check_family(family, catalog, overrides());
  const families::Facts facts = families::read_facts(family, "hf", config);
  if (output.json) {
    print(check_json(family, checks, facts));
  } else {
    print_checks(family, checks);
    print("facts:\n");
    print_facts(facts);
  }
  size_t problems = 0;
  for (const DialectCheck& check : checks) problems += check.findings.size();
  if (checks.empty())
    throw unfaithful_error({what_, {}}, "family {} has no rules",
                           family->name());
  if (problems > 0)
    throw unfaithful_error({what_, {}}, "does not fit family {}: {}",
                           family->name(), text::counted(problems, "problem"))
        .with_hint("docs/families.md: a file of your own takes --family-file");
  return ExitCode::kDone;
}

ExitCode FamilyCommand::run() {
  if (!draft_.empty() && action_ != "infer")
    throw usage_error({}, "-o goes with family infer, not with {}", action_);
  if (action_ == "list" && !what_.empty())
    throw usage_error({}, "unexpected argument '{}'", what_)
        .with_hint("to look at one: ckpt family show " + what_);
  if (action_ == "list") return list();
  if (action_ == "infer")
    return infer_family({.path = what_, .file = draft_, .output = output});
  return action_ == "show" ? show() : check();
}

}  // namespace

std::unique_ptr<Command> make_family() {
  return std::make_unique<FamilyCommand>();
}

}  // namespace ckpt::app
