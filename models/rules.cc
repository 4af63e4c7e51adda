// SPDX-License-Identifier: Apache-2.0
#include "models/rules.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "lib/io/file.h"
#include "lib/text/glob.h"
#include "lib/text/json.h"
#include "lib/text/other_json.h"
#include "lib/text/suggest.h"
#include "models/fairseq2_section.h"
#include "models/pattern.h"

namespace ckpt::families {
namespace {

using Json = nlohmann::json;
constexpr uint64_t kMaxRulesFile = uint64_t{16} << 20;
constexpr uint64_t kMaxLayers = 4096;

// One line of a family's tp_rules.
struct PatternRule {
  Pattern pattern;
  TpRule rule;
};

struct GlobRule {
  text::Glob glob;
  TpRule rule;
};

// The value that decides an "if": the config's, or the family's default.
std::optional<Scalar> field_value(const Json& family, const Config& config,
                                  const std::string& field, bool& defaulted) {
  if (const auto found = config.find(field); found != config.end())
    return found->second;
  defaulted = true;
  const Json& defaults = family.at("config_defaults");
  if (!defaults.contains(field)) return std::nullopt;
  const Json& value = defaults.at(field);
  if (value.is_boolean()) return Scalar(value.get<bool>());
  if (value.is_number_integer()) return Scalar(value.get<int64_t>());
  if (value.is_number()) return Scalar(value.get<double>());
  if (value.is_string()) return Scalar(value.get<std::string>());
  return Scalar();
}

bool equals(const Scalar& value, const Json& wanted) {
  if (const bool* b = std::get_if<bool>(&value))
    return wanted.is_boolean() && wanted.get<bool>() == *b;
  if (const int64_t* i = std::get_if<int64_t>(&value))
    return wanted.is_number_integer() && wanted.get<int64_t>() == *i;
  if (const std::string* s = std::get_if<std::string>(&value))
    return wanted.is_string() && wanted.get<std::string>() == *s;
  return std::holds_alternative<std::monostate>(value) && wanted.is_null();
}

uint64_t number(const Json& family, const Config& config,
                const std::string& field) {
  bool defaulted = false;
  Config one;
  if (const auto value = field_value(family, config, field, defaulted))
    one[field] = *value;
  if (const auto n = whole_number(one, field)) return *n;
  throw unfaithful_error({}, "family {}: the model's configuration has no {}",
                         family.at("family").get<std::string>(), field)
      .with_hint("name the split dimensions with --shard-dims RULES.json");
}

// "{global}" becomes the alternatives "(4|9|14)": the layers of an index set.
std::string expand_index_sets(std::string pattern, const Json& family,
                              const Config& config) {
  if (!family.contains("index_sets")) return pattern;
  for (const auto& [name, set] : family.at("index_sets").items()) {
    const size_t at = pattern.find("{" + name + "}");
    if (at == std::string::npos) continue;
    const uint64_t layers =
        number(family, config, set.at("layers").get<std::string>());
    if (layers == 0 || layers > kMaxLayers)
      throw input_error({}, "family {}: {} layers",
                        family.at("family").get<std::string>(), layers);
    const uint64_t every = set.at("every").get<uint64_t>();
    std::string all;
    for (uint64_t i = 0; i < layers; ++i) {
      if ((i + 1) % every == 0 || i + 1 == layers)
        all += (all.empty() ? "" : "|") + std::to_string(i);
    }
    pattern.replace(at, name.size() + 2, "(" + all + ")");
  }
  return pattern;
}

uint32_t group_count(const Json& rule, const Json& family,
                     const Config& config) {
  if (!rule.contains("groups")) return 1;
  const Json& groups = rule.at("groups");
  const uint64_t n = groups.is_string()
                         ? number(family, config, groups.get<std::string>())
                         : groups.get<uint64_t>();
  if (n == 0 || n > UINT32_MAX)
    throw input_error({}, "family {}: {} groups",
                      family.at("family").get<std::string>(), n);
  return static_cast<uint32_t>(n);
}

TpRule split_of(const Json& rule, const Json& family, const Config& config) {
  if (rule.at("dim").is_null()) return TpRule::replicated();
  return TpRule::split(rule.at("dim").get<uint32_t>(),
                       group_count(rule, family, config));
}

[[noreturn]] void bad_rule(const std::string& path, const std::string& key,
                           const char* why) {
  throw usage_error({path, {}}, "rule \"{}\": {}", key, why)
      .with_hint(
          "a rule is \"GLOB\": the dimension that is split, or null, or "
          "{\"dim\": 0, \"groups\": 4}");
}

uint32_t small_number(const nlohmann::ordered_json& value,
                      const std::string& path, const std::string& key) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > UINT32_MAX)
    bad_rule(path, key, "expected a whole number of at least 0");
  return value.get<uint32_t>();
}

TpRule user_rule(const nlohmann::ordered_json& value, const std::string& path,
                 const std::string& key) {
  if (value.is_null()) return TpRule::replicated();
  if (!value.is_object()) return TpRule::split(small_number(value, path, key));
  TpRule rule = TpRule::split(0);
  for (const auto& [field, number] : value.items()) {
    const uint32_t n = small_number(number, path, key);
    if (field == "dim")
      rule.dim = n;
    else if (field == "groups" && n > 0)
      rule.groups = n;
    else
      bad_rule(path, key, "expected dim and groups (at least 1)");
  }
  if (!value.contains("dim")) bad_rule(path, key, "dim is missing");
  return rule;
}

}  // namespace

struct Rules::Layer {
  std::string family;
  std::string source;
  std::vector<PatternRule> patterns;  // of a family
  std::vector<GlobRule> globs;        // of the user
  std::vector<Pattern> buffers;
  std::vector<std::vector<std::string>> tied;

  // The rule that decides; null if none does.
  const TpRule* find(std::string_view key) const {
    for (const GlobRule& r : globs)
      if (r.glob.matches(key)) return &r.rule;
    for (const PatternRule& r : patterns)
      if (r.pattern.matches(key)) return &r.rule;
    return nullptr;
  }
};

Rules::Rules() = default;

bool Rules::is_family(std::string_view family) {
  return !fairseq2_section(family).is_null();
}

std::vector<std::string> Rules::families() { return fairseq2_families(); }

Rules Rules::for_family(const std::string& family, const Config& config,
                        const std::string& source) {
  const Json json = fairseq2_section(family);
  if (json.is_null()) {
    const std::string near = text::nearest(family, families());
    std::string known;
    for (const std::string& name : families())
      known += (known.empty() ? "" : ", ") + name;
    throw usage_error({}, "no shard dimensions for family '{}'", family)
        .with_hint(near.empty() ? "families: " + known
                                : "did you mean '" + near + "'?");
  }
  auto layer = std::make_shared<Layer>();
  layer->family = family;
  layer->source = source;
  Rules rules;

  // One line for each default that decided something.
  std::vector<std::string> told;
  const auto holds = [&](const Json& entry) {
    if (!entry.contains("if")) return true;
    const std::string field = entry.at("if").at("field").get<std::string>();
    bool defaulted = false;
    const auto value = field_value(json, config, field, defaulted);
    if (defaulted && !std::ranges::count(told, field)) {
      told.push_back(field);
      rules.assumptions_.push_back(
          fmt::format("family {}: {} = {}, fairseq2's default ({})", family,
                      field, value ? to_string(*value) : "?",
                      config.empty() ? "no model.yaml" : "not in model.yaml"));
    }
    return value && equals(*value, entry.at("if").at("equals"));
  };
  for (const Json& rule : json.at("tp_rules")) {
    if (!holds(rule)) continue;
    layer->patterns.push_back(
        {Pattern(expand_index_sets(rule.at("match").get<std::string>(), json,
                                   config)),
         split_of(rule, json, config)});
  }
  for (const Json& set : json.at("tied")) {
    if (holds(set))
      layer->tied.push_back(set.at("keys").get<std::vector<std::string>>());
  }
  for (const Json& buffer : json.at("buffers"))
    layer->buffers.emplace_back(buffer.get<std::string>());
  rules.layers_.push_back(std::move(layer));
  return rules;
}

Rules Rules::from_file(const std::string& path) {
  const std::string text = io::read_file(path, kMaxRulesFile);
  if (!text::parse_json(text, path).is_object())
    throw usage_error({path, {}}, "expected an object of rules");
  auto layer = std::make_shared<Layer>();
  layer->source = "--shard-dims " + io::base_name(path);
  // Parsed again, in the file's order: the first match wins.
  const auto json = text::parse_or_discard<nlohmann::ordered_json>(text);
  for (const auto& [key, value] : json.items())
    layer->globs.push_back({text::Glob(key), user_rule(value, path, key)});
  Rules rules;
  rules.layers_.push_back(std::move(layer));
  return rules;
}

Rules Rules::over(Rules below) const {
  Rules all = *this;
  all.layers_.insert(all.layers_.end(), below.layers_.begin(),
                     below.layers_.end());
  all.assumptions_.insert(all.assumptions_.end(), below.assumptions_.begin(),
                          below.assumptions_.end());
  return all;
}

TpRule Rules::tp(std::string_view key) const {
  bool family = false;
  for (const auto& layer : layers_) {
    if (const TpRule* rule = layer->find(key)) return *rule;
    family = family || !layer->family.empty();
  }
  return family ? TpRule::replicated() : TpRule{};
}

bool Rules::splits(std::string_view key) const {
  return tp(key).state == TpRule::State::kSplit;
}

bool Rules::buffer(std::string_view key) const {
  return std::ranges::any_of(layers_, [&](const auto& layer) {
    return std::ranges::any_of(layer->buffers, [&](const Pattern& pattern) {
      return pattern.matches(key);
    });
  });
}

const std::vector<std::vector<std::string>>& Rules::tied() const {
  static const std::vector<std::vector<std::string>> none;
  for (const auto& layer : layers_)
    if (!layer->tied.empty()) return layer->tied;
  return none;
}

bool Rules::empty() const { return layers_.empty(); }

const std::string& Rules::family() const {
  static const std::string none;
  for (const auto& layer : layers_)
    if (!layer->family.empty()) return layer->family;
  return none;
}

std::string Rules::source() const {
  std::string all;
  for (const auto& layer : layers_) {
    if (!all.empty()) all += ", then ";
    all += layer->family.empty()
               ? layer->source
               : "family " + layer->family + " (" + layer->source + ")";
  }
  return all;
}

const std::vector<std::string>& Rules::assumptions() const {
  return assumptions_;
}

}  // namespace ckpt::families
