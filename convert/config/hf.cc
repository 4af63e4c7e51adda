// SPDX-License-Identifier: Apache-2.0
// config.json: kept, corrected, or made from what the source says.

#include "containers/hf/hf.h"

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "convert/config/model_config.h"
#include "convert/config/parts.h"
#include "convert/warnings.h"
#include "models/order.h"

namespace ckpt::families {

// Makes a config.json that is kept say what --set says: changes each key that
// follows from it, and no other.
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
    return;  // the file lacks what --set gives
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
  add_text(catalog, kHfConfig, config_text(kept));
}

// The dtype of the weights as they will be written.
DType Configuration::dtype_of(const Catalog& catalog) const {
  return options_.dtype ? *options_.dtype : model_dtype(catalog.tensors);
}

// The keys of the table that are others without --set, or are not there: the
// rest of it are numbers that config.json has, and literals of the family that
// it may have other values of.
Json Configuration::changed_by_set() const {
  Json changed = Json::object();
  const Json& formula = in_->dialect().hf_config;
  if (!formula.is_object()) return changed;
  const bool own = !own_.source.empty();
  const Values& values = own ? own_ : carried_;
  const Numbers before(family_, in_->dialect(), own ? from_ : "hf",
                       values.values, values.source, {});
  for (const auto& [key, entry] : formula.items()) {
    const auto now = table_.find(key);
    if (now == table_.end()) continue;
    try {
      const Json was = config_table({{key, entry}}, before);
      if (was.value(key, Json()) == *now) continue;
    } catch (const Error&) {  // it lacks what --set says
    }
    changed[key] = *now;
  }
  return changed;
}

// What stands beside the source, with the numbers that the source has; or what
// follows from these alone.
Json Configuration::hf_config(const Catalog& catalog) const {
  if (!table_.is_object()) return carried_.values;
  Json config = table_;
  config[carried_.source.empty() ? "torch_dtype" : "dtype"] =
      torch_name(dtype_of(catalog));
  if (carried_.source.empty()) return nested(std::move(config));
  // It agrees, and says more than a table can, so it is kept key for key.
  Json kept = carried_.values;
  for (const char* key : {"dtype", "torch_dtype"})
    if (kept.contains(key)) kept[key] = config["dtype"];
  if (options_.set.empty()) return kept;
  const Json changed = changed_by_set();
  const auto correct = [&](Json& object) {
    for (const auto& [key, value] : changed.items())
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

// Keys of the language model go into an object of their own.
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
  Json config = hf_config(catalog);
  if (config.is_object() && !config.empty()) {
    if (carried_.source.empty()) complete_token_ids(catalog, config);
    add_text(catalog, kHfConfig, config_text(config));
    return;
  }
  catalog.problems.push_back(warning(
      "no_config", {catalog.path, {}},
      "the source does not say enough for a config.json, and transformers "
      "needs one: --config-from DIR copies another's"));
}

}  // namespace ckpt::families
