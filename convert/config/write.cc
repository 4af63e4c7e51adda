// SPDX-License-Identifier: Apache-2.0
// The configurations of the other dialects: Megatron's args, params.json,
// model.yaml, OLMo-core's config.json.
#include <fmt/format.h>

#include <algorithm>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "convert/config/facts_olmo.h"
#include "convert/config/facts_table.h"
#include "convert/config/model_config.h"
#include "convert/config/parts.h"
#include "lib/text/format.h"

namespace ckpt::families {
namespace {

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

// OLMo-core states the dtype of each module.
void set_dtype(const std::string& dtype, Json& config) {
  for (auto& [key, value] : config.items()) {
    if (value.is_object()) set_dtype(dtype, value);
    if (key == "dtype") value = dtype;
  }
}

}  // namespace

std::vector<FactDifference> Configuration::say(const std::string& side,
                                               const std::string& what,
                                               Json& table,
                                               Catalog& catalog) const {
  Unsaid unsaid =
      say_facts(family_, side, facts_, what, options_.allow_unsaid, table);
  warn_of_unsaid(unsaid.allowed, what, catalog);
  return std::move(unsaid.near);
}

// Such args serve only the way back. Users who want the tensors under
// Megatron's names, for their own code, say so.
void Configuration::check_own_args(const Json& args, Catalog& catalog) const {
  if (options_.lenient) return;
  std::vector<FactDifference> own = own_args(args);
  // These belong to towers, beside which GPTModel is the language model.
  std::erase_if(own, [&](const FactDifference& one) {
    return std::ranges::any_of(
        family_->hf().outer,
        [&](const std::string& key) { return one.name == "config." + key; });
  });
  MegatronModel model = megatron_model(*family_);
  if (model.unbuilt) std::ranges::move(model.lacks, std::back_inserter(own));
  if (options_.strict_config) model.warned.clear();
  const auto passes = [&](const FactDifference& one) {
    return is_allowed(options_.allow_unsaid, one.name) ||
           is_allowed(model.warned, one.name);
  };
  const auto refused = std::ranges::find_if_not(own, passes);
  if (refused == own.end())
    return warn_of_unsaid(own, "Megatron's args", catalog);
  std::string list, allow;
  for (const FactDifference& one : own) {
    if (passes(one)) continue;
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

// A difference between small numbers: warned about, or refused if nothing may
// be left open.
void Configuration::note_near(Catalog& catalog, const FactDifference& one,
                              const char* program) const {
  if (options_.strict_config)
    throw unfaithful_error(
        {catalog.path, {}}, "--strict-config: {} is {} ({}), and {} in {}",
        one.name, shown_fact(one.a), one.source_a, shown_fact(one.b), program);
  catalog.problems.push_back(warning(
      "fact", {catalog.path, {}},
      "{} is {} ({}), and {} in {}: outputs differ a little "
      "(--strict-config refuses this)",
      one.name, shown_fact(one.a), one.source_a, shown_fact(one.b), program));
}

void Configuration::write_args(Catalog& catalog) const {
  if (!out_) return;
  Json args = config_table(out_->dialect().config, *out_);
  const auto is_mtp = [](const Tensor& tensor) {
    return tensor.name.starts_with("mtp.");
  };
  if (std::ranges::none_of(catalog.tensors, is_mtp))
    args.erase("mtp_num_layers");
  for (const FactDifference& one :
       say("mcore", "Megatron's args", args, catalog))
    note_near(catalog, one, "GPTModel");
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
    note_near(catalog, one, "fairseq2's code");
  write_yaml_value(config, text, 2);
  add_text(catalog, kYaml, std::move(text));
}

// {"model": …}, as in a trainer's file.
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
