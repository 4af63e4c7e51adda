// SPDX-License-Identifier: Apache-2.0
#include "convert/check_source.h"

#include <algorithm>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/hf/numbered.h"
#include "convert/config/dialects.h"
#include "convert/config/facts.h"
#include "convert/config/values.h"
#include "convert/rules/named_tensors.h"
#include "convert/sizes.h"
#include "formats/traits.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/glob.h"

namespace ckpt::families {

namespace {

// The keys of a config.json that say of which family it is, and their values.
std::string said_type(const Json& config) {
  const auto text_of = [](const Json& value) {
    return value.is_string() ? value.get<std::string>() : shown_fact(value);
  };
  std::string said;
  const auto add = [&](const std::string& key, const Json& value) {
    if (value.is_null()) return;
    said += fmt::format("{}{} {}", said.empty() ? "" : " and ", key,
                        text_of(value));
  };
  add("model_type", config.value("model_type", Json()));
  if (said.empty()) add("architectures", config.value("architectures", Json()));
  const Json text = config.value("text_config", Json());
  if (text.is_object())
    add("text_config.model_type", text.value("model_type", Json()));
  if (const std::string key = Family::retyped_by(config); !key.empty())
    add(key, config.at(key).is_null() ? Json("null") : config.at(key));
  return text::printable(said);
}

}  // namespace

void check_type(const Catalog& source, const TranslateOptions& options,
                const Family& family) {
  const bool own = options.family.empty();  // a family of one's own
  if (options.lenient || (own && options.family_file.empty())) return;
  const Values config = options.config_from.empty()
                            ? values_of(source, "hf")
                            : values_of_file(options.config_from, "hf");
  const auto named = Family::for_config(config.values);
  if (!named || named->name() == family.name() || family.fits(config.values))
    return;
  // It may be for a model type that it does not name, but not for one that
  // transformers takes for another.
  if (own && (Family::retyped_by(config.values).empty() ||
              std::ranges::count(
                  family.hf().model_types,
                  config.values.at("model_type").get<std::string>()) == 0))
    return;
  throw unfaithful_error({source.path, {}},
                         "--family{} {}, and {} says {}, "
                         "which is {}",
                         own ? "-file" : "",
                         own ? options.family_file : family.name(),
                         config.source, said_type(config.values), named->name())
      .with_hint(
          "leave it out, or name the right config.json with --config-from DIR");
}

void check_named(const Catalog& source, const TranslateOptions& options,
                 const Family& family) {
  if (options.lenient || !options.family_file.empty()) return;
  const NamedFamily named = named_family(source);
  if (!named.family || named.family->name() == family.name()) return;
  throw unfaithful_error({source.path, {}}, "{} {}, which is family {}, not {}",
                         named.said, text::printable(named.name),
                         named.family->name(), family.name())
      .with_hint(
          options.family.empty()
              ? "the config.json is another model's: move it away, or name "
                "the right one with --config-from DIR"
              : "leave --family out; --family-file FILE brings a family of "
                "your own");
}

void check_numbers(const Catalog& source, const TranslateOptions& options) {
  const auto family = find_family(source, options);
  const Values config = values_of(source, "hf");
  if (!family || config.source.empty()) return;
  check_type(source, options, *family);
  std::vector<Tensor> named;  // only shapes and names are checked
  for (const Tensor& tensor : source.tensors)
    if (tensor.kind == Kind::model) {
      Tensor& one = named.emplace_back();
      one.name = family->normal_name(tensor.name);
      one.dtype = tensor.dtype;
      one.shape = tensor.shape;
    }
  const NamedTensors model(std::move(named));
  const Facts facts = read_facts(family, "hf", config, options.set);
  check_sizes(model, facts, Globs(options.drop), options.set.contains("V"),
              source.path);
  if (!Globs(options.allow_missing).match("*"))  // a part was asked for
    check_layers(model, facts, source.path);
}

bool is_one_of_several(const std::string& path) {
  return formats::parse_numbered(io::base_name(path)) &&
         !io::is_directory(path);
}

namespace {

// fairseq2 0.4 writes a config.json beside its shards that has Llama 3's rotary
// scaling whatever its own model has.
bool is_fairseq2s(const Json& config) {
  const Json classes = config.value("architectures", Json::array());
  return classes.is_array() &&
         std::ranges::any_of(classes, [](const Json& name) {
           return name.is_string() &&
                  name.get_ref<const std::string&>().starts_with("Fairseq2");
         });
}

// Nothing but that scaling, which its own model does not have.
bool is_scaling_alone(const std::vector<FactDifference>& differences) {
  constexpr const char* kParts[] = {
      "rope_type", "rope_factor", "rope_low_freq_factor",
      "rope_high_freq_factor", "rope_original_positions"};
  bool scales = false;
  for (const FactDifference& one : differences) {
    if (std::ranges::find(kParts, one.name) == std::end(kParts)) return false;
    scales = scales || (one.name == "rope_type" && one.a == Json("default") &&
                        one.b == Json("llama3"));
  }
  return scales;
}

}  // namespace

std::vector<Problem> check_beside(Catalog& source,
                                  const TranslateOptions& options) {
  const std::string from(dialect_of(source));
  if (from != "mcore" && from != "meta" && from != "fairseq2") return {};
  const Values config = values_of(source, "hf");
  if (config.source.empty()) return {};
  load_objects(source);
  const auto family = find_family(source, options);
  const Values own = values_of(source, from);
  if (!family || own.source.empty()) return {};
  check_type(source, options, *family);
  Facts said = read_facts(family, from, own, options.set);
  const Facts beside = read_facts(family, "hf", config, options.set);
  // --set takes precedence.
  for (const FactDifference& one : differing(said, beside))
    if (one.source_b.ends_with("--set")) said[one.name] = beside.at(one.name);
  const auto differences = differing(said, beside, from);
  // Both of fairseq2's go along, as they do there.
  std::vector<Problem> problems;
  if (from == "fairseq2" && is_fairseq2s(config.values) &&
      is_scaling_alone(differences))
    for (const FactDifference& one : differences)
      problems.push_back(warning(
          "fact", {source.path, {}},
          "{} is {} ({}), and {} ({} beside it): fairseq2 reads the first, "
          "other programs the second",
          one.name, shown_fact(one.a), one.source_a, shown_fact(one.b),
          one.source_b));
  else
    check_agreement(said, beside, from, source.path);
  return problems;
}

}  // namespace ckpt::families
