// SPDX-License-Identifier: Apache-2.0
#include "convert/check_source.h"

#include <algorithm>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "convert/dialects.h"
#include "convert/facts.h"
#include "convert/named_tensors.h"
#include "convert/sizes.h"
#include "convert/values.h"
#include "lib/text/format.h"
#include "lib/text/glob.h"

namespace ckpt::families {

void check_type(const Catalog& source, const TranslateOptions& options,
                const Family& family) {
  if (options.family.empty() || options.lenient) return;
  const Values config = options.config_from.empty()
                            ? values_of(source, "hf")
                            : values_of_file(options.config_from, "hf");
  const auto named = Family::for_config(config.values);
  if (!named || named->name() == family.name()) return;
  std::string type;
  const Json text = config.values.value("text_config", Json());
  for (const Json* object : {&text, &config.values}) {
    if (!object->is_object()) continue;
    const Json said = object->value("model_type", Json());
    if (!said.is_string()) continue;
    type = said.get<std::string>();
    if (type == family.hf().text_type ||
        std::ranges::count(family.hf().model_types, type) != 0)
      return;
  }
  if (type.empty()) return;
  throw unfaithful_error(
      {source.path, {}}, "--family {}, and {} says model_type {}, which is {}",
      family.name(), config.source, text::printable(type), named->name())
      .with_hint(
          "leave --family out, or name the right config.json with "
          "--config-from DIR");
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
