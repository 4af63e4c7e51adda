// SPDX-License-Identifier: Apache-2.0
#include "models/defaults.h"

#include <set>

#include "lib/embedded.h"

namespace ckpt::families {
namespace {

const Json* text_config_of(const Json& config) {
  if (!config.is_object()) return nullptr;
  const auto text = config.find("text_config");
  return text != config.end() && text->is_object() ? &*text : nullptr;
}

// The defaults of its class. `type`: if it names none that is known.
const Json& class_of_text(const Json& text, const std::string& type) {
  const Json own = text.value("model_type", Json(type));
  const Json& named =
      hf_defaults(own.is_string() ? own.get<std::string>() : "");
  return named.empty() ? hf_defaults(type) : named;
}

}  // namespace

const Json& hf_defaults(const std::string& model_type) {
  static const Json table = Json::parse(embedded_text("hf_defaults"));
  static const Json nothing = Json::object();
  const auto found = table.find(model_type);
  return found == table.end() ? nothing : *found;
}

std::string why_not_megatron(const std::string& model_type) {
  static const Json table = Json::parse(embedded_text("not_megatrons"));
  return table.value(model_type, std::string());
}

void drop_beside_text_config(Json& config, const std::string& type,
                             const std::vector<std::string>& outer) {
  const Json* text = text_config_of(config);
  if (!text) return;
  std::set<std::string> keys{"rope_scaling", "rope_theta", "rope_parameters",
                             "partial_rotary_factor"};
  for (const auto& item : class_of_text(*text, type).items())
    keys.insert(item.key());
  if (keys.size() == 4) return;  // its class is not known
  keys.erase("tie_word_embeddings");
  keys.erase("rope");  // no key of a file: both spellings in one
  for (const std::string& key : outer) keys.erase(key);
  for (const std::string& key : keys)
    if (!key.ends_with("_token_id")) config.erase(key);
}

void complete_text_config(Json& config, const std::string& type) {
  if (!text_config_of(config)) return;
  const auto text = config.find("text_config");
  for (const auto& [key, value] : class_of_text(*text, type).items()) {
    // Ties belong to the whole model; rotary positions have several spellings.
    const bool elsewhere = key == "tie_word_embeddings" || key == "rope";
    if (value.is_null() || elsewhere || text->contains(key) ||
        config.contains(key))
      continue;
    (*text)[key] = value;
  }
}

}  // namespace ckpt::families
