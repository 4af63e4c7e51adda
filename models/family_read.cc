// SPDX-License-Identifier: Apache-2.0
#include "models/family_read.h"

#include <algorithm>

#include "ckpt/error.h"
#include "lib/text/format.h"
#include "lib/text/glob.h"
#include "models/buffers.h"
#include "models/extends.h"

namespace ckpt::families {
namespace {

bool is_word(std::string_view text) {
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  return !text.empty() && letter(text[0]) &&
         std::ranges::all_of(
             text, [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
}

std::vector<std::string> globs(const Value& value) {
  for (const Value& item : value.items()) {
    try {
      text::Glob{item.text()};
    } catch (const Error& error) {
      item.fail(error.problem());
    }
  }
  return texts(value);
}

// Tensors that are not parameters; their values are proven before they are left
// out.
std::vector<std::string> buffers(const Value& value) {
  for (const Value& item : value.items())
    if (!is_buffer_name(item.text()))
      item.fail(
          "is for rotary frequencies (*.rotary_emb.inv_freq, rope.freqs) and "
          "causal masks (*.attn.bias, *.attention.masked_bias) alone",
          "--drop GLOB leaves parameters out");
  return globs(value);
}

std::vector<HfSide::Repeat> read_repeats(const Value& value) {
  std::vector<HfSide::Repeat> repeats;
  for (const auto& [beside, copies] : value.members())
    for (const auto& [name, of] : copies.members())
      repeats.push_back({beside, name, of.text()});
  return repeats;
}

HfSide read_hf(const Value& value) {
  value.only({"model_type", "architectures", "ignore", "prefixes",
              "config_roots", "repeats", "text_type", "outer", "requires"});
  HfSide hf;
  hf.model_types = texts(value.member("model_type"), true);
  hf.architectures = texts(value.member("architectures"), true);
  if (const auto ignore = value.find("ignore")) hf.ignore = buffers(*ignore);
  if (const auto repeats = value.find("repeats"))
    hf.repeats = read_repeats(*repeats);
  if (const auto roots = value.find("config_roots"))
    hf.config_roots = texts(*roots);
  if (const auto type = value.find("text_type")) hf.text_type = type->text();
  if (const auto outer = value.find("outer")) {
    if (hf.text_type.empty()) outer->fail("needs \"text_type\"");
    hf.outer = texts(*outer);
  }
  if (const auto prefixes = value.find("prefixes")) {
    for (const Value& pair : prefixes->items()) {
      const std::vector<std::string> both = texts(pair);
      if (both.size() != 2 || both[0].empty())
        pair.fail("expected [\"from\", \"to\"]");
      hf.prefixes.emplace_back(both[0], both[1]);
    }
  }
  if (const auto conditions = value.find("requires"))
    for (const Value& pair : conditions->items()) {
      const std::vector<std::string> both = texts(pair);
      if (both.size() != 2) pair.fail("expected [condition, reason]");
      hf.requirements.emplace_back(both[0], both[1]);
    }
  return hf;
}

// A text is an expression; a number or flag stands for itself.
std::string expression_of(const Value& value) {
  if (value.is_text()) return value.text();
  if (value.json().is_structured()) value.fail("expected an expression");
  return value.json().dump();
}

using Variables = std::map<std::string, Variable, std::less<>>;

void read_variable(const Value& value, Variable& variable) {
  if (!value.is_object()) {
    variable = {{"", expression_of(value)}};
    return;
  }
  std::vector<std::string> sides = known_dialects();
  sides.insert(sides.begin(), "hf");
  for (const auto& [side, expression] : value.members()) {
    if (!std::ranges::count(sides, side))
      expression.fail("unknown side \"" + text::printable(side) + "\"",
                      known_names(side, sides));
    variable.erase("");
    variable[side] = expression_of(expression);
  }
}

void read_variables(const Value& value, Variables& vars) {
  for (const auto& [name, definition] : value.members()) {
    if (!name.starts_with('$') || !is_word(name.substr(1)))
      definition.fail("a variable's name is $ and a word");
    read_variable(definition, vars[name]);
  }
}

using Ranges = std::map<std::string, std::string, std::less<>>;

void read_index(const Value& value, Ranges& index) {
  for (const auto& [name, range] : value.members()) {
    if (!is_word(name)) range.fail("an index's name is a word");
    index[name] = expression_of(range);
  }
}

std::vector<std::string> read_notes(const Value& value) {
  const auto notes = value.find("notes");
  return notes ? texts(*notes, true) : std::vector<std::string>();
}

Names names_of(const Variables& vars, const Ranges& index) {
  Names names;
  for (const auto& [name, definition] : vars) names.vars.insert(name);
  for (const auto& [name, range] : index) names.all_index.insert(name);
  return names;
}

void check_variables(const Value& value, const Names& names) {
  for (const auto& [name, definition] : value.members()) {
    if (!definition.is_object()) {
      check_expression(definition, expression_of(definition), names,
                       names.all_index);
      continue;
    }
    for (const auto& [side, expression] : definition.members())
      check_expression(expression, expression_of(expression), names,
                       names.all_index);
  }
}

// Variables may use others but not themselves, and the depth is limited,
// because they are evaluated by recursion.
class DepthCheck {
 public:
  DepthCheck(const Variables& vars, const Value& where)
      : vars_(vars), where_(where) {}
  void run() {
    for (const auto& [name, definition] : vars_) depth(name, 1);
  }

 private:
  static constexpr size_t kMostDeep = 16;

  size_t depth(const std::string& name, size_t above) {
    if (above > kMostDeep) too_deep();
    const auto [known, is_new] = depths_.emplace(name, 0);
    if (!is_new) {
      if (known->second == 0)
        where_.fail("variable " + name + " is defined by itself");
      return known->second;
    }
    size_t below = 0;
    const auto found = vars_.find(name);
    if (found != vars_.end()) {
      for (const auto& [side, text] : found->second) {
        const Expr expression(text);
        for (const std::string& used : expression.names())
          if (used.starts_with('$'))
            below = std::max(below, depth(used, above + 1));
      }
    }
    if (below >= kMostDeep) too_deep();
    return depths_[name] = below + 1;
  }

  [[noreturn]] void too_deep() const {
    where_.fail(fmt::format("variables build on each other more than {} deep",
                            kMostDeep));
  }

  const Variables& vars_;
  const Value& where_;
  std::map<std::string, size_t> depths_;  // 0: being checked
};

// Refuses two rules for one tensor if nothing chooses between them.
void check_twice(const Value& rules, const std::vector<Rule>& all) {
  std::map<std::string, size_t> always;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i].when.empty()) continue;
    const auto [first, is_new] = always.emplace(all[i].to, i);
    if (!is_new)
      rules.items()[i].fail(fmt::format("{} has a rule on line {} already",
                                        text::printable(all[i].to),
                                        all[first->second].line));
  }
}

// Names of older releases, for tensors that have another name since.
void check_older(const Value& older, const std::vector<Rule>& rules) {
  for (const Value& name : older.items())
    if (std::ranges::count(rules, name.text(), &Rule::to) == 0)
      name.fail("no rule is for a tensor of that name");
}

}  // namespace

const std::vector<std::string>& known_dialects() {
  static const std::vector<std::string> known = {
      "mcore",       "meta",   "fairseq2",  "olmo_core", "gguf",
      "olmo_legacy", "litgpt", "internevo", "metaseq",   "neox"};
  return known;
}

class FamilyReader {
 public:
  explicit FamilyReader(const Located& file) : root_(file.root()) {}

  std::shared_ptr<const Family> read(const std::string& source) {
    root_.only({"schema", "family", "notes", "hf", "index", "vars", "dialects",
                "traits", "vllm", "modelopt"});
    family_->source_ = source;
    family_->name_ = root_.member("family").text();
    if (!is_word(family_->name_))
      root_.member("family").fail("a family's name is a word");
    family_->notes_ = read_notes(root_);
    if (const auto hf = root_.find("hf")) family_->hf_ = read_hf(*hf);
    const Value dialects = root_.member("dialects");
    if (dialects.members().empty()) dialects.fail("no dialect");
    for (const auto& [name, section] : dialects.members())
      read_dialect(name, section);
    if (const auto traits = root_.find("traits")) {
      if (!traits->is_object()) traits->fail("expected an object");
      family_->traits_ = traits->json();
    }
    if (const auto vllm = root_.find("vllm")) {
      if (!root_.find("hf")) vllm->fail("needs an \"hf\" side");
      family_->vllm_ = read_vllm(*vllm);
    }
    if (const auto modelopt = root_.find("modelopt")) {
      if (!root_.find("hf")) modelopt->fail("needs an \"hf\" side");
      family_->modelopt_ = read_modelopt(*modelopt);
    }
    return family_;
  }

  // Reads the file's own text, with that of the families it extends put in.
  static std::shared_ptr<const Family> read_all(Located& file,
                                                const std::string& source) {
    check_schema(file.root());
    std::vector<std::string> bases;
    complete(file, bases);
    FamilyReader reader(file);
    reader.family_->bases_ = std::move(bases);
    return reader.read(source);
  }

 private:
  static constexpr size_t kMostBases = 8;

  static void check_schema(const Value& root) {
    const Value schema = root.member("schema");
    if (schema.text() != "ckpt-family/2")
      schema.fail("expected \"ckpt-family/2\", found \"" +
                  text::printable(schema.text()) + "\"");
  }

  static void complete(Located& file, std::vector<std::string>& bases) {
    const auto extends = file.root().find("extends");
    if (!extends) return;
    const std::string name = extends->text();
    const std::string_view text = Family::text_of(name);
    if (text.empty())
      extends->fail("no family " + text::printable(name),
                    known_names(name, Family::names()));
    bases.push_back(name);
    if (bases.size() > kMostBases)
      extends->fail("families extend each other without end");
    Located base{std::string(text), name + ".json"};
    complete(base, bases);
    inherit(file, base);
  }

  void read_dialect(const std::string& name, const Value& section) {
    if (!std::ranges::count(known_dialects(), name))
      section.fail("unknown dialect \"" + text::printable(name) + "\"",
                   known_names(name, known_dialects()));
    if (name == "fairseq2") {
      check_fairseq2(section);
    } else {
      section.only({"notes", "ignore", "index", "vars", "requires", "rules",
                    "config", "hf_config", "older"});
      if (!section.find("rules")) section.fail("\"rules\" is missing");
    }
    Dialect& dialect = family_->dialects_.emplace_back();
    dialect.name = name;
    dialect.section = section.json();
    dialect.notes = read_notes(section);
    if (const auto ignore = section.find("ignore"))
      dialect.ignore = buffers(*ignore);
    const Names names = read_names(section, dialect);
    if (const auto hf = root_.find("hf"))
      if (const auto conditions = hf->find("requires"))
        check_requires(*conditions, names);
    if (const auto rules = section.find("rules")) {
      if (!root_.find("hf")) rules->fail("rules, but no \"hf\" side");
      for (const Value& rule : rules->items())
        dialect.rules.push_back(read_rule(rule, names));
      check_twice(*rules, dialect.rules);
      if (const auto older = section.find("older"))
        check_older(*older, dialect.rules);
    }
    read_table(section, "config", names, dialect.config);
    read_table(section, "hf_config", names, dialect.hf_config);
    if (const auto conditions = section.find("requires"))
      check_requires(*conditions, names);
    if (const auto condition = section.find("chosen"))
      check_expression(*condition, condition->text(), names, {});
  }

  // The family's variables and indices, or what the dialect has instead.
  Names read_names(const Value& section, Dialect& dialect) {
    for (const Value& place : {root_, section}) {
      if (const auto vars = place.find("vars"))
        read_variables(*vars, dialect.vars);
      if (const auto index = place.find("index"))
        read_index(*index, dialect.index);
    }
    const Names names = names_of(dialect.vars, dialect.index);
    for (const Value& place : {root_, section}) {
      if (const auto vars = place.find("vars")) {
        check_variables(*vars, names);
        DepthCheck(dialect.vars, *vars).run();
      }
      if (const auto index = place.find("index"))
        for (const auto& [name, range] : index->members())
          check_expression(range, expression_of(range), names, {});
    }
    return names;
  }

  static void check_requires(const Value& conditions, const Names& names) {
    for (const Value& pair : conditions.items()) {
      if (texts(pair).size() != 2) pair.fail("expected [condition, reason]");
      check_expression(pair.items()[0], pair.items()[0].text(), names, {});
    }
  }

  static void read_table(const Value& section, const char* name,
                         const Names& names, Json& table) {
    const auto found = section.find(name);
    if (!found) return;
    if (!found->is_object()) found->fail("expected an object");
    check_table(*found, names);
    table = found->json();
  }

  Value root_;
  std::shared_ptr<Family> family_ = std::make_shared<Family>();
};

std::shared_ptr<const Family> Family::from_text(std::string_view text,
                                                const std::string& source) {
  Located file(std::string(text), source);
  return FamilyReader::read_all(file, source);
}

}  // namespace ckpt::families
