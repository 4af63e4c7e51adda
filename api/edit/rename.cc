// SPDX-License-Identifier: Apache-2.0
#include "api/edit/rename.h"

#include <algorithm>
#include <optional>

#include "ckpt/ckpt.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "lib/text/json.h"
#include "lib/text/other_json.h"

namespace ckpt::library {
namespace {

constexpr uint64_t kMaxRules = uint64_t{64} << 20;

struct Rule {
  std::vector<std::string> from;  // the texts between stars
  std::vector<std::string> to;
  std::string text;
  uint64_t used = 0;
};

std::vector<std::string> split_at_stars(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == '*')
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

// "a.=b.,c.=": names that begin with a. begin with b. instead.
std::vector<Rule> prefix_rules(std::string_view text) {
  std::vector<Rule> rules;
  while (!text.empty()) {
    const std::string_view one = text.substr(0, text.find(','));
    text.remove_prefix(std::min(one.size() + 1, text.size()));
    const size_t sign = one.find('=');
    if (sign == one.npos || one.find('*') != one.npos)
      throw usage_error({}, "--rename: '{}' is not OLD=NEW", one)
          .with_hint(
              "prefixes: --rename 'transformer.=model.'; with stars: "
              "--rename '{\"*.w1\": \"*.gate_proj\"}'");
    rules.push_back({{std::string(one.substr(0, sign)), ""},
                     {std::string(one.substr(sign + 1)), ""},
                     std::string(one)});
  }
  return rules;
}

std::vector<Rule> read_rules(const std::string& rules_text) {
  const bool given = is_rule_text(rules_text);
  if (given && !rules_text.starts_with('{')) return prefix_rules(rules_text);
  const std::string path = given ? "" : rules_text;
  const std::string text = given ? rules_text : io::read_file(path, kMaxRules);
  try {
    text::parse_json(text, path);  // strict, but it does not keep the order
  } catch (const Error& error) {
    // A file named by an option is part of the command line.
    throw Error(ExitCode::kUsage, error.where(), "--rename: " + error.problem(),
                "a JSON object of OLD: NEW names, with * in both");
  }
  const auto root = text::parse_or_discard<nlohmann::ordered_json>(text);
  if (!root.is_object())
    throw usage_error({path, {}}, "expected an object of OLD: NEW names");
  std::vector<Rule> rules;
  for (const auto& [from, to] : root.items()) {
    if (!to.is_string())
      throw usage_error({path, {}}, "'{}': the new name is not a string", from);
    Rule rule{split_at_stars(from), split_at_stars(to.get<std::string>()),
              from};
    if (rule.to.size() != rule.from.size())
      throw usage_error({path, {}},
                        "'{}': {} stars on the left, {} on the right", from,
                        rule.from.size() - 1, rule.to.size() - 1);
    rules.push_back(std::move(rule));
  }
  return rules;
}

// What the stars match: each as little as possible, the last one the rest.
std::optional<std::vector<std::string>> match(const Rule& rule,
                                              const std::string& name) {
  if (!name.starts_with(rule.from.front())) return std::nullopt;
  std::vector<std::string> stars;
  size_t at = rule.from.front().size();
  for (size_t i = 1; i < rule.from.size(); ++i) {
    const std::string& next = rule.from[i];
    const bool last = i + 1 == rule.from.size();
    if (last && (name.size() < at + next.size() || !name.ends_with(next)))
      return std::nullopt;
    const size_t found = last ? name.size() - next.size() : name.find(next, at);
    if (found == std::string::npos) return std::nullopt;
    stars.push_back(name.substr(at, found - at));
    at = found + next.size();
  }
  if (at != name.size()) return std::nullopt;
  return stars;
}

std::string renamed(std::vector<Rule>& rules, const std::string& name) {
  for (Rule& rule : rules) {
    const auto stars = match(rule, name);
    if (!stars) continue;
    ++rule.used;
    std::string result = rule.to[0];
    for (size_t i = 0; i < stars->size(); ++i)
      result += (*stars)[i] + rule.to[i + 1];
    return result;
  }
  return name;
}

}  // namespace

bool is_rule_text(const std::string& text) {
  return text.starts_with('{') || (text.find('=') != text.npos &&
                                   !io::is_url(text) && !io::is_file(text));
}

std::vector<std::string> rename(Catalog& catalog,
                                const std::string& rules_text) {
  std::vector<Rule> rules = read_rules(rules_text);
  std::vector<std::string> changed;
  rename_tensors(catalog, [&](const std::string& name) {
    std::string made = renamed(rules, name);
    if (made != name) changed.push_back(made);
    return made;
  });
  for (const Rule& rule : rules)
    if (rule.used == 0)
      throw unfaithful_error(
          {is_rule_text(rules_text) ? catalog.path : rules_text, {}},
          "--rename: '{}' matches no tensor", rule.text)
          .with_hint(catalog.tensors.empty()
                         ? std::string()
                         : "a name here: " + catalog.tensors.front().name);
  return changed;
}

}  // namespace ckpt::library
