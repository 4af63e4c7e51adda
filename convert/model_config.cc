// SPDX-License-Identifier: Apache-2.0
#include "convert/model_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/hf/hf.h"
#include "convert/facts_olmo.h"
#include "convert/facts_table.h"
#include "convert/warnings.h"
#include "lib/pickle/json.h"
#include "lib/text/format.h"
#include "models/order.h"

namespace ckpt::families {
namespace {

constexpr char kHfConfig[] = "config.json";
constexpr char kYaml[] = "model.yaml";
constexpr char kParams[] = "params.json";

constexpr const char* kTokenIds[] = {"bos_token_id", "eos_token_id",
                                     "pad_token_id"};

// Files that describe the model in one dialect; others (tokenizers, licences)
// are true in any.
bool describes(std::string_view name) {
  return name == kHfConfig || name == kYaml || name == kParams;
}

// Of Megatron's: what the other dialect's configuration says, what is about the
// format alone, and that nothing was trained yet.
bool is_told_otherwise(const Object& object) {
  if (object.name == "args" || object.name == "checkpoint_version") return true;
  return object.name == "iteration" && object.document &&
         object.document->as_int(object.node) == 0;
}

void add_text(Catalog& catalog, std::string name, std::string text) {
  Sidecar sidecar;
  sidecar.path = "made:" + name;
  sidecar.name = std::move(name);
  sidecar.size = text.size();
  sidecar.text = std::make_shared<const std::string>(std::move(text));
  catalog.sidecars.push_back(std::move(sidecar));
}

void add_object(Catalog& catalog, std::string name, const Json& value) {
  std::erase_if(catalog.objects, [&](const Object& object) {
    return object.name == name || object.name.starts_with(name + ".");
  });
  auto document = std::make_shared<pickle::Document>();
  const pickle::Id node = pickle::from_json(*document, value);
  catalog.objects.push_back(
      {.name = std::move(name), .document = std::move(document), .node = node});
}

// As transformers spells it.
std::string torch_name(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return "bfloat16";
    case DType::f16:
      return "float16";
    case DType::f64:
      return "float64";
    default:
      return "float32";
  }
}

// Scalars and flat lists, which is all that model.yaml has.
void write_yaml_value(const Json& value, std::string& text, size_t indent) {
  if (!value.is_object()) {
    text += " " + value.dump() + "\n";
    return;
  }
  text += "\n";
  for (const auto& [key, item] : value.items()) {
    text += std::string(indent, ' ') + key + ":";
    write_yaml_value(item, text, indent + 2);
  }
}

// OLMo-core says it of each module.
void set_dtype(const std::string& dtype, Json& config) {
  for (auto& [key, value] : config.items()) {
    if (value.is_object()) set_dtype(dtype, value);
    if (key == "dtype") value = dtype;
  }
}

void warn_of_unsaid(const std::vector<FactDifference>& unsaid,
                    const std::string& what, Catalog& catalog) {
  if (unsaid.empty()) return;
  std::string list;
  for (const FactDifference& one : unsaid)
    list += fmt::format("{}{} is {}", list.empty() ? "" : ", ", one.name,
                        shown_fact(one.a));
  catalog.problems.push_back(
      warning("unsaid", {catalog.path, {}},
              "{} can't say all of the model: {}; what is built from it "
              "alone computes something else",
              what, text::printable(list)));
}

// Where the numbers of a model stand, in each dialect.
std::string_view file_of(std::string_view dialect) {
  if (dialect == "mcore") return "args";
  if (dialect == "meta") return kParams;
  if (dialect == "fairseq2") return kYaml;
  return kHfConfig;
}

}  // namespace

Configuration::Configuration(const Catalog& source,
                             std::shared_ptr<const Family> family,
                             std::string from, const TranslateOptions& options)
    : family_(std::move(family)),
      from_(std::move(from)),
      options_(options),
      own_(values_of(source, from_)) {
  carried_ = options.config_from.empty()
                 ? values_of(source, "hf")
                 : values_of_file(options.config_from, "hf");
  if (from_.starts_with("olmo") && options.config_from.empty() &&
      !carried_.values.contains("model_type"))
    carried_ = {};  // OLMo-core's own file has that name too
  if (own_.source.empty() && carried_.source.empty() && options.set.empty())
    throw unfaithful_error({source.path, {}},
                           "nothing says the model's numbers (layers, heads "
                           "…): there is no {}",
                           file_of(from_))
        .with_hint(
            "--config-from DIR names a directory with the model's "
            "config.json; --set NAME=VALUE gives single ones");
  read_all_facts(source);
}

void Configuration::read_all_facts(const Catalog& source) {
  const bool own = !own_.source.empty();
  if (own) facts_ = read_facts(family_, from_, own_, options_.set);
  settle_vocabulary();
  if (own && from_ != "hf") note_unknown(source, from_, own_);
  if (carried_.source.empty()) return;
  note_unknown(source, "hf", carried_);
  if (from_ == "hf" && options_.config_from.empty()) return;
  Facts other = read_facts(family_, "hf", carried_, options_.set);
  if (own && !options_.lenient) {
    // What --set says, is so.
    for (const FactDifference& one : differing(facts_, other))
      if (one.source_b.ends_with("--set"))
        facts_[one.name] = other.at(one.name);
    const auto differences = differing(facts_, other, from_);
    if (!differences.empty()) {
      const FactDifference& one = differences[0];
      throw unfaithful_error(
          {source.path, {}}, "{} is {} ({}), and {} ({} beside it)", one.name,
          shown_fact(one.a), one.source_a, shown_fact(one.b), one.source_b)
          .with_hint(
              "one of the two is another model's: move that config.json away, "
              "or name the right one with --config-from DIR");
    }
    // What the source's own dialect can only say nearly, config.json says.
    for (const FactDifference& one : differing(facts_, other))
      facts_[one.name] = other.at(one.name);
  }
  facts_.merge(other);
}

// What --vocab-size says is so: args say how many rows were in use before.
void Configuration::settle_vocabulary() {
  const auto given = options_.set.find("V");
  const auto fact = facts_.find("vocab_size");
  if (given == options_.set.end() || fact == facts_.end()) return;
  const Json rows = Json::parse(given->second, nullptr, false);
  if (rows.is_number_integer()) fact->second = {rows, "--vocab-size"};
}

void Configuration::note_unknown(const Catalog& source, const std::string& side,
                                 const Values& values) {
  if (side == "hf" && !options_.lenient) check_denied(source, values);
  const auto keys = unknown_keys(*family_, side, values.values);
  if (keys.empty()) return;
  if (options_.strict_config)
    throw unfaithful_error(
        {source.path, {}},
        "--strict-config: {} has keys that are not known: {}", values.source,
        text::printable(fmt::format("{}", fmt::join(keys, ", "))))
        .with_hint("take them out if they change nothing");
  unknown_.push_back(fmt::format(
      "{} has keys that are not known, and may change what the model "
      "computes: {}",
      values.source,
      text::printable(fmt::format("{}", fmt::join(keys, ", ")))));
}

// A key that has one value in all models of the family, and another here.
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
  in_.emplace(family_, dialect, own ? from_ : "hf", values.values,
              values.source, options_.set);
  if (own && !carried_.source.empty()) complete(dialect);
  if (!own)
    table_ = carried_.values;
  else if (dialect.hf_config.is_object())
    table_ = config_table(dialect.hf_config, *in_);
  if (own && table_.is_object()) table_.update(token_ids());
  if (own && table_.is_object() && carried_.source.empty() && !options_.lenient)
    unsaid_ = say_facts(family_, "hf", facts_, kHfConfig, options_.allow_unsaid,
                        table_)
                  .allowed;
  return *in_;
}

// Where a configuration that is not transformers' has them.
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

// What the source's own numbers leave open, config.json may say.
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
                      counted ? vocabulary->second.value.get<uint64_t>() : 0);
  if (from_ == "mcore" && options_.to != "mcore")
    std::erase_if(catalog.objects, is_told_otherwise);
  if (options_.to == "hf") return write_hf(catalog);
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
}

// config.json that goes along says what --set says: each key that follows from
// it, and no other.
void Configuration::correct_kept(Catalog& catalog) const {
  if (options_.set.empty() || from_ != "hf" || !out_) return;
  const Json& formula = out_->dialect().hf_config;
  if (!formula.is_object()) return;
  Json before;
  try {
    before =
        config_table(formula, Numbers(family_, out_->dialect(), "hf",
                                      carried_.values, carried_.source, {}));
  } catch (const Error&) {
    return;  // the file lacks what --set says
  }
  Json kept = carried_.values;
  const auto correct = [](Json& object, const std::string& key,
                          const Json& value) {
    if (!object.is_object() || !object.contains(key)) return false;
    object[key] = value;
    return true;
  };
  bool any = false;
  const Json after = config_table(formula, *out_);
  for (const auto& [key, value] : after.items()) {
    if (before.value(key, Json()) == value) continue;
    any |= correct(kept, key, value);
    if (kept.contains("text_config"))
      any |= correct(kept["text_config"], key, value);
  }
  if (!any) return;
  std::erase_if(catalog.sidecars, [](const Sidecar& sidecar) {
    return sidecar.name == kHfConfig;
  });
  add_text(catalog, kHfConfig, kept.dump(2) + "\n");
}

// Of the weights, as they will be written.
DType Configuration::dtype_of(const Catalog& catalog) const {
  return options_.dtype ? *options_.dtype : model_dtype(catalog.tensors);
}

// What stands beside the source, with the numbers that the source has; or what
// follows from these alone.
Json Configuration::hf_config(const Catalog& catalog) const {
  if (!table_.is_object()) return carried_.values;
  Json config = table_;
  config[carried_.source.empty() ? "torch_dtype" : "dtype"] =
      torch_name(dtype_of(catalog));
  if (carried_.source.empty()) return nested(std::move(config));
  // It agrees, and says more than a table can: kept key for key.
  Json kept = carried_.values;
  for (const char* key : {"dtype", "torch_dtype"})
    if (kept.contains(key)) kept[key] = config["dtype"];
  if (options_.set.empty()) return kept;
  const auto correct = [&](Json& object) {
    for (const auto& [key, value] : config.items())
      if (object.contains(key) && !object[key].is_null()) object[key] = value;
  };
  correct(kept);
  const auto text = kept.find("text_config");
  if (text == kept.end() || !text->is_object()) return kept;
  const Json type = text->value("model_type", Json());
  correct(*text);
  if (!type.is_null()) (*text)["model_type"] = type;
  return kept;
}

// What is of the language model goes into an object of its own.
Json Configuration::nested(Json config) const {
  const HfSide& hf = family_->hf();
  if (hf.text_type.empty() || !config.is_object()) return config;
  constexpr const char* kTop[] = {"architectures", "model_type", "dtype",
                                  "torch_dtype", "tie_word_embeddings"};
  Json whole = Json::object();
  const auto take = [&](const std::string& key) {
    const auto found = config.find(key);
    if (found == config.end()) return;
    whole[key] = *found;
    config.erase(found);
  };
  for (const char* key : kTop) take(key);
  for (const std::string& key : hf.outer) take(key);
  config["model_type"] = hf.text_type;
  whole["text_config"] = std::move(config);
  return whole;
}

void Configuration::write_hf(Catalog& catalog) const {
  std::erase_if(catalog.sidecars, [](const Sidecar& sidecar) {
    return sidecar.name == kYaml || sidecar.name == kParams ||
           sidecar.name == kHfConfig;
  });
  if (!options_.config_from.empty()) {
    Catalog beside;
    formats::add_sidecars(options_.config_from, beside);
    for (Sidecar& sidecar : beside.sidecars) {
      std::erase_if(catalog.sidecars, [&](const Sidecar& other) {
        return other.name == sidecar.name;
      });
      catalog.sidecars.push_back(std::move(sidecar));
    }
    return;
  }
  const Json config = hf_config(catalog);
  if (config.is_object() && !config.empty()) {
    add_text(catalog, kHfConfig, config.dump(2) + "\n");
    return;
  }
  catalog.problems.push_back(warning(
      "no_config", {catalog.path, {}},
      "the source does not say enough for a config.json, and transformers "
      "needs one: --config-from DIR copies another's"));
}

std::vector<FactDifference> Configuration::say(const std::string& side,
                                               const std::string& what,
                                               Json& table,
                                               Catalog& catalog) const {
  Unsaid unsaid =
      say_facts(family_, side, facts_, what, options_.allow_unsaid, table);
  warn_of_unsaid(unsaid.allowed, what, catalog);
  return std::move(unsaid.near);
}

// Such args are for the way back alone. Whoever wants the tensors under
// Megatron's names, for code of their own, says so.
void Configuration::check_own_args(const Json& args, Catalog& catalog) const {
  if (options_.lenient) return;
  std::vector<FactDifference> own = own_args(args);
  // Of towers, beside which GPTModel is the language model.
  std::erase_if(own, [&](const FactDifference& one) {
    return std::ranges::any_of(
        family_->hf().outer,
        [&](const std::string& key) { return one.name == "config." + key; });
  });
  const bool elsewhere =
      !options_.strict_config &&
      traits_of(*family_, args).value("layers_elsewhere", false);
  const auto refused = std::ranges::find_if(own, [&](const auto& one) {
    return !elsewhere && !is_allowed(options_.allow_unsaid, one.name);
  });
  if (refused == own.end())
    return warn_of_unsaid(own, "Megatron's args", catalog);
  std::string list, allow;
  for (const FactDifference& one : own) {
    if (is_allowed(options_.allow_unsaid, one.name)) continue;
    list += fmt::format("{}{} is {}", list.empty() ? "" : "; ", one.name,
                        shown_fact(one.a));
    allow += fmt::format(" --allow-unsaid {}", one.name);
  }
  const std::string can =
      refused->b.is_string() ? refused->b.get<std::string>() : "no such thing";
  throw unfaithful_error({catalog.path, {}},
                         "Megatron's GPTModel has no argument for this: {}",
                         text::printable(list))
      .with_hint(fmt::format("it can say: {}; for code of your own that knows "
                             "it:{}",
                             can, allow));
}

void Configuration::write_args(Catalog& catalog) const {
  if (!out_) return;
  Json args = config_table(out_->dialect().config, *out_);
  const auto is_mtp = [](const Tensor& tensor) {
    return tensor.name.starts_with("mtp.");
  };
  if (std::ranges::none_of(catalog.tensors, is_mtp))
    args.erase("mtp_num_layers");
  say("mcore", "Megatron's args", args, catalog);
  check_own_args(args, catalog);
  for (const char* key : kTokenIds)
    if (const auto id = carried_.values.find(key); id != carried_.values.end())
      args["ckpt_token_ids"][key] = *id;
  args["ckpt_family"] = family_->name();
  args["params_dtype"] = "torch." + torch_name(dtype_of(catalog));
  add_object(catalog, "args", args);
}

void Configuration::write_params(Catalog& catalog) const {
  if (!out_) return;
  Json params = config_table(out_->dialect().config, *out_);
  say("meta", kParams, params, catalog);
  add_object(catalog, "params", params);
}

// Of as small a number: said, and refused where nothing may be left open.
void Configuration::note_near(Catalog& catalog,
                              const FactDifference& one) const {
  if (options_.strict_config)
    throw unfaithful_error(
        {catalog.path, {}}, "--strict-config: {} is {} ({}), and {} there",
        one.name, shown_fact(one.a), one.source_a, shown_fact(one.b));
  catalog.problems.push_back(
      warning("fact", {catalog.path, {}},
              "{} is {} ({}), and {} in fairseq2's code: outputs differ a "
              "little (--strict-config refuses this)",
              one.name, shown_fact(one.a), one.source_a, shown_fact(one.b)));
}

void Configuration::write_yaml(Catalog& catalog) const {
  if (!out_ || !out_->dialect().config.is_object()) {
    catalog.problems.push_back(
        warning("no_config", {catalog.path, {}},
                "no model.yaml is written: fairseq2 needs the model's "
                "configuration from its asset card"));
    return;
  }
  const Json& native = family_->fairseq2();
  const std::string name = native.is_object()
                               ? native.value("family", family_->name())
                               : family_->name();
  std::string text =
      "name: checkpoint\nmodel_family: " + name + "\nmodel_config:";
  Json config = config_table(out_->dialect().config, *out_);
  for (const FactDifference& one : say("fairseq2", kYaml, config, catalog))
    note_near(catalog, one);
  write_yaml_value(config, text, 2);
  add_text(catalog, kYaml, std::move(text));
}

// {"model": …}, as a trainer's file has it.
void Configuration::write_olmo(Catalog& catalog) const {
  if (!out_ || !out_->dialect().config.is_object()) {
    catalog.problems.push_back(
        warning("no_config", {catalog.path, {}},
                "no config.json is written: there is no table of {} that "
                "OLMo-core builds a model of",
                family_->name()));
    return;
  }
  Json config = config_table(out_->dialect().config, *out_);
  set_dtype(torch_name(dtype_of(catalog)), config);
  complete_olmo(facts_, config);
  say("olmo_core", "OLMo-core's config.json", config, catalog);
  for (const char* key : kTokenIds)
    if (const auto id = carried_.values.find(key); id != carried_.values.end())
      config["dataset"]["tokenizer"][key] = *id;
  if (const auto most = facts_.find("max_positions");
      most != facts_.end() && most->second.value.is_number_integer())
    config["ckpt"]["max_position_embeddings"] = most->second.value;
  config["ckpt"]["family"] = family_->name();
  add_text(catalog, kHfConfig, config.dump(2) + "\n");
}

}  // namespace ckpt::families
