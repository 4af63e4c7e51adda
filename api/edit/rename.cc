// SPDX-License-Identifier: Apache-2.0
#include "api/edit/rename.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "ckpt/ckpt.h"
#include "lib/io/file.h"
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

std::vector<Rule> read_rules(const std::string& path) {
  if (path.starts_with('{'))
    throw usage_error({}, "--rename takes a file, not the JSON itself")
        .with_hint("write it to rules.json, then --rename rules.json");
  const std::string text = io::read_file(path, kMaxRules);
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

void rename(Catalog& catalog, const std::string& rules_file) {
  std::vector<Rule> rules = read_rules(rules_file);
  rename_tensors(catalog,
                 [&](const std::string& name) { return renamed(rules, name); });
  for (const Rule& rule : rules)
    if (rule.used == 0)
      throw unfaithful_error({rules_file, {}}, "'{}' matches no tensor",
                             rule.text);
}

}  // namespace ckpt::library
