// SPDX-License-Identifier: Apache-2.0
#include "convert/sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "convert/config/facts_table.h"
#include "lib/text/format.h"

namespace ckpt::families {
namespace {

// A name without what wraps the language model and without its numbers:
// "layers.{}.mlp.experts.{}.up_proj.weight". `layer` is the first number.
std::string plain_name(std::string_view name, std::optional<uint64_t>& layer) {
  constexpr std::string_view kWraps[] = {"model.",    "language_model.",
                                         "decoder.",  "transformer.",
                                         "gpt_neox.", "backbone."};
  const auto begins = [&](std::string_view wrap) {
    return name.starts_with(wrap);
  };
  for (const auto* wrap = std::ranges::find_if(kWraps, begins);
       wrap != std::end(kWraps); wrap = std::ranges::find_if(kWraps, begins))
    name.remove_prefix(wrap->size());
  std::string plain;
  while (!name.empty()) {
    const size_t end = std::min(name.find('.'), name.size());
    const std::string_view part = name.substr(0, end);
    uint64_t number = 0;
    const auto [stop, failure] =
        std::from_chars(part.data(), part.data() + part.size(), number);
    const bool counts =
        failure == std::errc{} && stop == part.data() + part.size();
    if (counts && !layer) layer = number;
    plain += counts ? "{}" : part;
    if (end < name.size()) plain += '.';
    name.remove_prefix(std::min(end + 1, name.size()));
  }
  if (plain.starts_with("h.")) plain.replace(0, 2, "layers.");
  return plain;
}

// The facts as an expression's names; for one that differs by layer, that
// layer's.
class SizeScope : public Expr::Scope {
 public:
  SizeScope(const Facts& facts, std::optional<uint64_t> layer)
      : facts_(facts), layer_(layer) {}

  const Json& value(const std::string& name) const override {
    static const Json nothing;
    const auto fact = facts_.find(name);
    if (fact == facts_.end()) return nothing;
    const Json& said = fact->second.value;
    if (!said.is_array()) return said;
    return layer_ && *layer_ < said.size() ? said[*layer_] : nothing;
  }

 private:
  const Facts& facts_;
  std::optional<uint64_t> layer_;
};

// The extent that a configuration gives; nothing for a list of another kind or
// a number that it does not give.
std::optional<uint64_t> extent_of(const Expr& how, const SizeScope& scope) {
  for (const std::string& name : how.names())
    if (!scope.value(name).is_number_integer() &&
        !scope.value(name).is_boolean() && !scope.value(name).is_null())
      return std::nullopt;
  try {
    const Json value = how.eval(scope);
    if (value.is_number_integer() && value > 0) return value.get<uint64_t>();
  } catch (const Error&) {
    return std::nullopt;  // of a number that is null
  }
  return std::nullopt;
}

struct Extents {
  std::optional<Expr> when;
  std::vector<std::optional<Expr>> each;
  bool vocabulary = false;
  bool either = false;  // for modules whose weights may be either way round
};

// The ways to state a tensor's shape, by its plain name. The first whose
// condition holds applies.
const std::multimap<std::string, Extents, std::less<>>& extents_table() {
  static const auto table = [] {
    std::multimap<std::string, Extents, std::less<>> rows;
    for (const Json& row : facts_table().at("sizes"))
      for (const Json& name : row.at("of")) {
        Extents extents;
        extents.either = row.value("either", false);
        if (row.contains("when"))
          extents.when.emplace(row.at("when").get<std::string>());
        for (const Json& extent : row.at("shape")) {
          auto& one = extents.each.emplace_back();
          if (extent.is_null()) continue;
          one.emplace(extent.get<std::string>());
          extents.vocabulary |= extent == "vocab_size";
        }
        rows.emplace(name.get<std::string>(), std::move(extents));
      }
    return rows;
  }();
  return table;
}

// "kv_heads 4 (config.json num_key_value_heads), head_dim 8 (…)"
std::string said_of(const Expr& how, const SizeScope& scope,
                    const Facts& facts) {
  std::string text;
  for (const std::string& name : how.names()) {
    const auto fact = facts.find(name);
    if (fact == facts.end() || !scope.value(name).is_number()) continue;
    text += fmt::format("{}{} {} ({})", text.empty() ? "" : ", ", name,
                        shown_fact(scope.value(name)), fact->second.source);
  }
  return text;
}

std::optional<Error> contradiction(const Tensor& tensor, const Extents& extents,
                                   const SizeScope& scope, const Facts& facts,
                                   bool padded, const std::string& path) {
  const auto fits = [&](size_t i, size_t dimension) {
    if (!extents.each[i] || (padded && extents.vocabulary && i == 0))
      return true;
    const auto wanted = extent_of(*extents.each[i], scope);
    return !wanted || *wanted == tensor.shape[dimension];
  };
  if (extents.either && fits(0, 1) && fits(1, 0)) return std::nullopt;
  for (size_t i = 0; i < extents.each.size(); ++i) {
    if (fits(i, i)) continue;
    const std::optional<Expr>& how = extents.each[i];
    const auto wanted = extent_of(*how, scope);
    return unfaithful_error({path, text::printable(tensor.name)},
                            "is {}, and its extent {} would be {}: {}",
                            to_string(tensor.shape), i, *wanted,
                            text::printable(said_of(*how, scope, facts)))
        .with_hint(
            extents.vocabulary && i == 0
                ? fmt::format("if these are all, --vocab-size {0} first (ckpt "
                              "convert SRC DST --vocab-size {0}); else the "
                              "configuration is another model's",
                              tensor.shape[0])
                : "the configuration is another model's: `ckpt family check` "
                  "prints its numbers, --set NAME=VALUE changes one");
  }
  return std::nullopt;
}

constexpr std::string_view kCounts[] = {
    "layers",      "hidden_size",       "heads",       "kv_heads",
    "head_dim",    "ffn_size",          "vocab_size",  "experts",
    "expert_size", "experts_per_token", "q_lora_rank", "kv_lora_rank",
    "v_head_dim",  "qk_nope_head_dim",  "shared_size", "qk_rope_head_dim",
    "window",      "max_positions"};
constexpr std::string_view kAmounts[] = {"rope_theta", "rope_factor",
                                         "rope_fraction", "query_scale"};

bool is_count(const Json& value) {
  // params.json's -1: as many as the tokenizer has.
  return value.is_number_unsigned() ||
         (value.is_number_integer() && value >= -1);
}

bool is_amount(const Json& value) {
  return value.is_number() && std::isfinite(value.get<double>());
}

bool is_above_zero(const Json& value) {
  return is_amount(value) && value.get<double>() > 0;
}

// For all layers, or for each.
void check_type_of(const Facts& facts, std::string_view name,
                   bool (*fits)(const Json&), const char* wanted,
                   const std::string& path) {
  const auto fact = facts.find(std::string(name));
  if (fact == facts.end()) return;
  const Json& value = fact->second.value;
  const auto fine = [&](const Json& one) {
    return one.is_null() || one == Json(false) || fits(one);
  };
  if (value.is_array() ? std::ranges::all_of(value, fine) : fine(value)) return;
  std::string said = shown_fact(value);
  if (value.is_string()) said = '"' + said + '"';
  if (value.is_number_float() && !is_amount(value)) said = "not a number";
  throw input_error({path, {}}, "{} ({}) is {}: {} is wanted", name,
                    fact->second.source, text::printable(said), wanted)
      .with_hint(
          "put it right in the configuration; --set NAME=VALUE gives "
          "single numbers");
}

}  // namespace

void check_types(const Facts& facts, const std::string& path) {
  for (const std::string_view name : kCounts)
    check_type_of(facts, name, is_count, "a whole number", path);
  for (const std::string_view name : kAmounts)
    check_type_of(facts, name, is_amount, "a number", path);
  check_type_of(facts, "norm_epsilon", is_above_zero, "a number above zero",
                path);
}

std::vector<Error> find_sizes(const NamedTensors& model, const Facts& facts,
                              const Globs& drop, bool padded,
                              const std::string& path) {
  std::vector<Error> found;
  if (facts.empty()) return found;
  for (const Tensor& tensor : model.tensors()) {
    // A quantized tensor may have several numbers in one element.
    const bool plain = tensor.dtype == DType::f32 ||
                       tensor.dtype == DType::bf16 ||
                       tensor.dtype == DType::f16 || tensor.dtype == DType::f64;
    if (tensor.kind != Kind::model || !plain || drop.match(tensor.name))
      continue;
    std::optional<uint64_t> layer;
    const auto [first, last] =
        extents_table().equal_range(plain_name(tensor.name, layer));
    const SizeScope scope(facts, layer);
    for (auto row = first; row != last; ++row) {
      const Extents& extents = row->second;
      if (extents.when && !truthy(extents.when->eval(scope))) continue;
      if (extents.each.size() != tensor.shape.size())
        found.push_back(
            unfaithful_error({path, text::printable(tensor.name)},
                             "is {}, and the model has {} dimensions of it",
                             to_string(tensor.shape), extents.each.size()));
      else if (auto one =
                   contradiction(tensor, extents, scope, facts, padded, path))
        found.push_back(std::move(*one));
      break;
    }
  }
  return found;
}

void check_sizes(const NamedTensors& model, const Facts& facts,
                 const Globs& drop, bool padded, const std::string& path) {
  const auto found = find_sizes(model, facts, drop, padded, path);
  if (!found.empty()) throw Error(found.front());
}

void check_layers(const NamedTensors& model, const Facts& facts,
                  const std::string& path) {
  const auto layers = facts.find("layers");
  if (layers == facts.end() || !layers->second.value.is_number_unsigned())
    return;
  const auto wanted = layers->second.value.get<uint64_t>();
  uint64_t found = 0;
  // Behind the counted ones, and whether it predicts further tokens.
  std::map<uint64_t, bool> behind;
  for (const Tensor& tensor : model.tensors()) {
    std::optional<uint64_t> layer;
    const std::string name = plain_name(tensor.name, layer);
    if (!name.starts_with("layers.{}.") || !layer) continue;
    if (*layer < wanted)
      found = std::max(found, *layer + 1);
    else
      behind[*layer] |=
          name.ends_with(".enorm.weight") || name.ends_with(".eh_proj.weight");
  }
  for (const auto& [layer, predicts] : behind)
    if (!predicts) found = layer + 1;
  if (found == 0 || found == wanted) return;
  throw unfaithful_error({path, {}}, "has {} layers, and {} says {}", found,
                         layers->second.source, wanted)
      .with_hint(found < wanted
                     ? "the configuration is another model's, or a file is "
                       "missing"
                     : "the configuration is another model's");
}

}  // namespace ckpt::families
