// SPDX-License-Identifier: Apache-2.0
#include "convert/config/model_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "convert/config/facts_table.h"
#include "convert/config/gguf.h"
#include "convert/config/parts.h"
#include "convert/config/trainer.h"
#include "convert/sizes.h"
#include "convert/warnings.h"
#include "lib/pickle/value.h"
#include "lib/text/format.h"
#include "lib/text/other_json.h"

namespace ckpt::families {
namespace {

// Files that describe the model in one dialect; others (tokenizers, licences)
// are true in any.
bool describes(std::string_view name) {
  return name == kHfConfig || name == kYaml || name == kParams;
}

// True for those of Megatron's objects that repeat what the other dialect's
// configuration says, concern only the format, or say that nothing was trained
// yet.
bool is_told_otherwise(const Object& object) {
  if (object.name == "args" || object.name == "checkpoint_version") return true;
  return object.name == "iteration" && object.document &&
         object.document->as_int(object.node) == 0;
}

// True for a dialect whose configuration is read as the config.json that it
// amounts to.
bool is_told(std::string_view dialect) {
  return TrainerConfig::of(dialect) != nullptr || dialect == kGguf;
}

// The file that holds a model's numbers in each dialect.
std::string_view file_of(std::string_view dialect) {
  if (dialect == "mcore") return "args";
  if (dialect == "meta") return kParams;
  if (dialect == "fairseq2") return kYaml;
  if (dialect == kGguf) return "general.architecture among its keys";
  if (const TrainerConfig* own = TrainerConfig::of(dialect))
    return own->source();
  return kHfConfig;
}

}  // namespace

Configuration::Configuration(const Catalog& source,
                             std::shared_ptr<const Family> family,
                             std::string from, const TranslateOptions& options)
    : family_(std::move(family)),
      from_(std::move(from)),
      options_(options),
      own_(is_told(from_) ? Values() : values_of(source, from_)) {
  carried_ = options.config_from.empty()
                 ? values_of(source, "hf")
                 : values_of_file(options.config_from, "hf");
  if (is_told(from_)) trainer_ = values_of(source, from_);
  if (from_.starts_with("olmo") && options.config_from.empty() &&
      !carried_.values.contains("model_type"))
    carried_ = trainer_;  // OLMo-core's own file has the same name
  if (own_.source.empty() && carried_.source.empty() && options.set.empty())
    throw unfaithful_error({source.path, {}},
                           "nothing says the model's numbers (layers, heads "
                           "…): there is no {}",
                           file_of(from_))
        .with_hint(
            "--config-from DIR names a directory with the model's "
            "config.json; --set NAME=VALUE gives single ones");
  check_told(source);
  read_all_facts(source);
}

// What only the trainer's own configuration says of its names.
void Configuration::check_told(const Catalog& source) const {
  const TrainerConfig* table = TrainerConfig::of(from_);
  if (table == nullptr) return;
  for (const auto& [key, what] : table->told_by())
    if (!trainer_.told.contains(key) && !options_.set.contains(key))
      throw unfaithful_error({source.path, {}}, "nothing says {}", what)
          .with_hint(fmt::format("say it: --set {}=true or false", key));
}

void Configuration::read_all_facts(const Catalog& source) {
  const bool own = !own_.source.empty();
  if (own) facts_ = read_facts(family_, from_, own_, options_.set);
  if (!options_.lenient) check_types(facts_, source.path);
  settle_vocabulary();
  if (own && from_ != "hf") note_unknown(source, from_, own_);
  check_trainer(source);
  if (carried_.source.empty()) return;
  note_unknown(source, "hf", carried_);
  if (from_ == "hf" && options_.config_from.empty()) return;
  Facts other = read_facts(family_, "hf", carried_, options_.set);
  if (!options_.lenient) check_types(other, source.path);
  if (own && !options_.lenient) {
    // --set takes precedence.
    for (const FactDifference& one : differing(facts_, other))
      if (one.source_b.ends_with("--set"))
        facts_[one.name] = other.at(one.name);
    check_agreement(facts_, other, from_, source.path);
    // config.json states what the source's own dialect can only approximate.
    for (const FactDifference& one : differing(facts_, other))
      facts_[one.name] = other.at(one.name);
  }
  facts_.merge(other);
}

// What the trainer, or llama.cpp, builds its model from; config.json beside it
// is that of the model which training began from.
void Configuration::check_trainer(const Catalog& source) {
  if (trainer_.source.empty()) return;
  note_keys(source, trainer_.source, trainer_.unknown);
  if (trainer_.source == carried_.source || options_.lenient) return;
  Facts own = read_facts(family_, "hf", trainer_, options_.set);
  const TrainerConfig* table = TrainerConfig::of(from_);
  if (table != nullptr && table->is_partial())
    std::erase_if(own, [](const auto& fact) {
      return fact.second.value.is_null() ||
             fact.second.source.ends_with("by default");
    });
  check_agreement(own, read_facts(family_, "hf", carried_, options_.set), "hf",
                  source.path);
}

// --vocab-size takes precedence: args say how many rows were in use before.
void Configuration::settle_vocabulary() {
  const auto given = options_.set.find("V");
  if (given == options_.set.end()) return;
  // Args may not say it: read_facts.
  if (!facts_.contains("vocab_size") && (facts_.empty() || from_ != "mcore"))
    return;
  const auto rows = text::parse_or_discard<Json>(given->second);
  if (rows.is_number_integer()) facts_["vocab_size"] = {rows, "--vocab-size"};
}

void Configuration::note_unknown(const Catalog& source, const std::string& side,
                                 const Values& values) {
  if (side == "hf" && !options_.lenient) check_denied(source, values);
  note_keys(source, values.source, unknown_keys(*family_, side, values.values));
}

void Configuration::note_keys(const Catalog& source, const std::string& file,
                              const std::vector<std::string>& keys) {
  if (keys.empty()) return;
  const std::string listed =
      text::printable(fmt::format("{}", fmt::join(keys, ", ")));
  if (options_.strict_config)
    throw unfaithful_error({source.path, {}},
                           "--strict-config: {} has keys that are not known: "
                           "{}",
                           file, listed)
        .with_hint("take them out if they change nothing");
  unknown_.push_back(
      fmt::format("{} has keys that are not known, and may change what the "
                  "model computes: {}",
                  file, listed));
}

// Checks for a key that has one value in all models of the family, but another
// here.
void Configuration::check_denied(const Catalog& source, const Values& values) {
  for (const FactDifference& one : denied_keys(*family_, values.values)) {
    const std::string said = text::printable(
        fmt::format("{} says {} {}, and what is known of {} is {} {}",
                    values.source, one.name, shown_fact(one.a), family_->name(),
                    one.name, shown_fact(one.b)));
    if (is_allowed(options_.allow_unsaid, one.name)) {
      unknown_.push_back(said);
      continue;
    }
    throw unfaithful_error({source.path, {}}, "{}", said)
        .with_hint(fmt::format(
            "transformers' class looks at no such key. If it changes nothing "
            "here: --allow-unsaid {} converts as if it said the usual value; "
            "if it does, --family-file FILE brings a family that knows it",
            text::printable(one.name)));
  }
}

const Numbers& Configuration::numbers(const Dialect& dialect) {
  // The source's own numbers are the model's; config.json may be another's.
  const bool own = !own_.source.empty() || carried_.source.empty();
  const Values& values = own ? own_ : carried_;
  Json numbers = values.values;
  if (trainer_.told.is_object()) numbers.update(trainer_.told);
  in_.emplace(family_, dialect, own ? from_ : "hf", std::move(numbers),
              values.source, options_.set);
  if (own && !carried_.source.empty()) complete(dialect);
  if (!own)
    table_ = carried_.values;
  else if (dialect.hf_config.is_object())
    table_ = config_table(dialect.hf_config, *in_);
  if (own && table_.is_object()) table_.update(token_ids());
  if (own && table_.is_object() && carried_.source.empty() &&
      !options_.lenient) {
    Unsaid unsaid = say_facts(family_, "hf", facts_, kHfConfig,
                              options_.allow_unsaid, table_);
    unsaid_ = std::move(unsaid.allowed);
    near_ = std::move(unsaid.near);
  }
  return *in_;
}

// Token ids from a configuration that is not transformers'.
Json Configuration::token_ids() const {
  Json found = Json::object();
  const auto take = [&](const Json& from) {
    if (!from.is_object()) return;
    for (const char* key : kTokenIds)
      if (from.contains(key)) found[key] = from.at(key);
  };
  take(own_.values.value("ckpt_token_ids", Json()));
  const Json data = own_.values.value("dataset", Json());
  if (data.is_object()) take(data.value("tokenizer", Json()));
  return found;
}

// Takes from config.json what the source's own numbers leave open.
void Configuration::complete(const Dialect& dialect) {
  const Numbers hf(family_, dialect, "hf", carried_.values, carried_.source,
                   options_.set);
  const auto value_of = [](const Numbers& numbers, const std::string& name) {
    try {
      return numbers.eval(name);
    } catch (const Error&) {
      return Json();  // it depends on an index, or nothing says it
    }
  };
  for (const auto& variable : dialect.vars) {
    const std::string& name = variable.first;
    if (!value_of(*in_, name).is_null()) continue;
    Json value = value_of(hf, name);
    if (!value.is_null())
      in_->complete(name, std::move(value), carried_.source);
  }
}

const Numbers& Configuration::hf_numbers(const Dialect& dialect) {
  if (from_ == "hf" || !in_)
    out_.emplace(family_, dialect, "hf", carried_.values, carried_.source,
                 options_.set);
  else if (table_.is_object())
    out_.emplace(family_, dialect, "hf", table_, in_->source(), options_.set);
  else
    out_.emplace(family_, dialect, from_, own_.values, own_.source,
                 options_.set);
  return *out_;
}

// Notes a params.json beside weights of transformers, which was not used.
void Configuration::note_unread(Catalog& catalog) const {
  for (const Sidecar& sidecar : catalog.sidecars)
    if (describes(sidecar.name) && sidecar.name != file_of(from_) &&
        sidecar.name != kHfConfig)
      catalog.problems.push_back(
          remark("unread_file", {sidecar.path, {}},
                 "describes a model in another dialect: {} was read instead",
                 own_.source.empty() ? carried_.source : own_.source));
}

void Configuration::finish(Catalog& catalog) const {
  for (const auto* numbers : {&in_, &out_})
    if (*numbers)
      for (const std::string& line : (*numbers)->used())
        if (std::ranges::count(catalog.assumptions, line) == 0)
          catalog.assumptions.push_back(line);
  for (const std::string& line : unknown_)
    catalog.problems.push_back(
        warning("unknown_key", {catalog.path, {}}, "{}", line));
  warn_of_unsaid(unsaid_, kHfConfig, catalog);
  const auto vocabulary = facts_.find("vocab_size");
  const bool counted = vocabulary != facts_.end() &&
                       vocabulary->second.value.is_number_unsigned();
  if (!options_.lenient)
    warn_of_leftovers(catalog, carried_.values,
                      counted ? vocabulary->second.value.get<uint64_t>() : 0,
                      options_.set.contains("V"));
  if (from_ == "mcore" && options_.to != "mcore")
    std::erase_if(catalog.objects, is_told_otherwise);
  if (from_ == kGguf && options_.to != kGguf) {
    if (!options_.lenient && options_.config_from.empty())
      add_gguf_tokenizer(catalog);
    leave_gguf_metadata(catalog);
  }
  if (!options_.lenient) note_unread(catalog);
  if (options_.to == "hf") {
    for (const FactDifference& one : near_)
      note_near(catalog, one, "transformers' code");
    return write_hf(catalog);
  }
  // OLMo-core's config.json is not transformers'.
  const bool keep_config =
      (options_.to == "mcore" || options_.to == "fairseq2") &&
      !from_.starts_with("olmo");
  std::erase_if(catalog.sidecars, [&](const Sidecar& sidecar) {
    return describes(sidecar.name) &&
           !(keep_config && sidecar.name == kHfConfig);
  });
  if (keep_config) correct_kept(catalog);
  if (options_.to == "mcore") return write_args(catalog);
  if (options_.to == "meta") return write_params(catalog);
  if (options_.to == "fairseq2") return write_yaml(catalog);
  if (options_.to == "olmo_core") return write_olmo(catalog);
  if (options_.to == kGguf)
    add_gguf_metadata(family_, facts_, hf_config(catalog), options_, catalog);
}

}  // namespace ckpt::families
