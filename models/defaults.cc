// SPDX-License-Identifier: Apache-2.0
#include "models/defaults.h"

#include "lib/embedded.h"

namespace ckpt::families {

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

void complete_text_config(Json& config, const std::string& type) {
  if (!config.is_object()) return;
  const auto text = config.find("text_config");
  if (text == config.end() || !text->is_object()) return;
  const Json own = text->value("model_type", Json(type));
  const Json& named =
      hf_defaults(own.is_string() ? own.get<std::string>() : "");
  const Json& all = named.empty() ? hf_defaults(type) : named;
  for (const auto& [key, value] : all.items()) {
    // Ties belong to the whole model; rotary positions have several spellings.
    const bool elsewhere = key == "tie_word_embeddings" || key == "rope";
    if (value.is_null() || elsewhere || text->contains(key) ||
        config.contains(key))
      continue;
    (*text)[key] = value;
  }
}

}  // namespace ckpt::families
