// Configurations, as the ledger's expressions read them.
#include <algorithm>
#include <array>

#include "formats/families/embedded.h"
#include "formats/families/facts_table.h"

namespace ckpt::families {
namespace {

const Json kNull;

const Json& at(const Json& object, const char* key) {
  if (!object.is_object()) return kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

// Sizes: a configuration without them says nothing, whatever the class has.
constexpr auto kSizes =
    std::to_array<std::string_view>({"num_hidden_layers",
                                     "hidden_size",
                                     "num_attention_heads",
                                     "intermediate_size",
                                     "vocab_size",
                                     "n_layer",
                                     "n_embd",
                                     "n_head",
                                     "n_positions",
                                     "n_inner",
                                     "head_dim",
                                     "num_experts",
                                     "num_local_experts",
                                     "n_routed_experts",
                                     "num_experts_per_tok",
                                     "moe_intermediate_size",
                                     "ffn_hidden_size",
                                     "num_kv_heads",
                                     "qk_head_dim",
                                     "tie_word_embeddings",
                                     "shared_expert_intermediate_size",
                                     "max_position_embeddings",
                                     "original_max_position_embeddings",
                                     "rope"});

void merge(Json& into, const Json& from) {
  if (!from.is_object()) return;
  for (const auto& [key, value] : from.items())
    if (!value.is_null()) into[key] = value;
}

// Both spellings: rope_parameters of v5, rope_theta and rope_scaling of v4.
Json hf_rope(const Json& values, const Json& defaults) {
  Json rope = Json::object();
  merge(rope, at(defaults, "rope"));
  const Json* parameters = &at(values, "rope_parameters");
  if (at(*parameters, "full_attention").is_object())
    parameters = &at(*parameters, "full_attention");
  for (const char* key : {"rotary_emb_base", "rope_theta"})
    if (!at(values, key).is_null()) rope["rope_theta"] = at(values, key);
  for (const char* key : {"rotary_pct", "partial_rotary_factor"})
    if (!at(values, key).is_null())
      rope["partial_rotary_factor"] = at(values, key);
  merge(rope, *parameters);
  merge(rope, at(values, "rope_scaling"));
  Json type = at(rope, "rope_type").is_null() ? at(rope, "type")
                                              : at(rope, "rope_type");
  if (type == "su") type = "longrope";
  rope.erase("type");
  rope.erase("rope_type");
  if (!type.is_null() && type != "default" && type != "mrope")
    rope["type"] = type;
  return rope;
}

// Megatron's window is (left, right): so many tokens before this one.
Json mcore_window(const Json& values) {
  Json window = Json::object();
  const Json& size = at(values, "window_size");
  if (size.is_array() && !size.empty() && size[0].is_number_integer() &&
      size[0] >= 0)
    window["size"] = size[0].get<int64_t>() + 1;
  else if (size.is_number_integer() && size > 0)
    window["size"] = size;
  const Json& skip = at(values, "window_attn_skip_freq");
  if (skip.is_array()) window["list"] = skip;
  if (skip.is_number_integer() && skip > 0) window["every"] = skip;
  return window;
}

// OLMo-core: by what only one of its classes has.
Json olmo_rope(const Json& mixer) {
  Json rope = Json::object();
  merge(rope, at(mixer, "rope"));
  const Json scaling = at(rope, "scaling");
  rope.erase("scaling");
  if (!scaling.is_object()) return rope;
  merge(rope, scaling);
  rope["original_max_position_embeddings"] = at(scaling, "old_context_len");
  if (scaling.contains("beta_fast"))
    rope["type"] = "yarn";
  else if (scaling.contains("low_freq_factor"))
    rope["type"] = "llama3";
  else
    rope["type"] = scaling.value("_CLASS_", "other");
  return rope;
}

Json olmo_window(const Json& model, const Json& mixer) {
  const Json& sliding = at(mixer, "sliding_window");
  const Json& pattern = at(sliding, "pattern");
  const Json& layers = at(model, "n_layers");
  Json window = Json::object();
  if (!pattern.is_array() || pattern.empty() || !layers.is_number_integer() ||
      layers < 1 || layers > 100000)
    return window;
  const bool first =
      at(sliding, "force_full_attention_on_first_layer") != false;
  const bool last = at(sliding, "force_full_attention_on_last_layer") != false;
  const auto count = layers.get<size_t>();
  Json list = Json::array();
  for (size_t layer = 0; layer < count; ++layer) {
    const bool full = (first && layer == 0) || (last && layer + 1 == count);
    const size_t place = first && layer > 0 ? layer - 1 : layer;
    const Json& size = pattern[place % pattern.size()];
    const bool windowed = !full && size.is_number_integer() && size > 0;
    list.push_back(windowed ? size.get<int64_t>() + 1 : 0);
  }
  window["list"] = std::move(list);
  return window;
}

void prepare_olmo(Json& values) {
  const Json& model = at(values, "model");
  const Json& block = at(model, "block");
  Json mixer = at(block, "sequence_mixer").is_object()
                   ? at(block, "sequence_mixer")
                   : at(block, "attention");
  Json rope = olmo_rope(mixer);
  Json window = olmo_window(model, mixer);
  values["rope"] = std::move(rope);
  values["window"] = std::move(window);
  values["mixer"] = std::move(mixer);
}

void prepare_hf(const Json& defaults, Json& values,
                std::vector<std::string>& defaulted) {
  const Json text = at(values, "text_config");
  merge(values, text);
  values["rope"] = hf_rope(values, defaults);
  for (const auto& [key, value] : defaults.items()) {
    if (values.contains(key)) continue;
    if (std::ranges::count(kSizes, key) != 0) continue;
    values[key] = value;
    defaulted.push_back(key);
  }
}

// A list, or what model_yaml.h makes of one.
void prepare_fairseq2(Json& values) {
  const Json factors = at(at(values, "rope_scale"), "frequency_factors");
  const bool list = factors.is_array() && factors.size() == 2;
  values["rope_low"] = list ? factors[0] : at(factors, "0");
  values["rope_high"] = list ? factors[1] : at(factors, "1");
}

}  // namespace

const Json& facts_table() {
  static const Json table = Json::parse(embedded_text("facts"));
  return table;
}

const Json& hf_defaults(const std::string& model_type) {
  static const Json table = Json::parse(embedded_text("hf_defaults"));
  static const Json nothing = Json::object();
  const auto found = table.find(model_type);
  return found == table.end() ? nothing : *found;
}

std::string model_type_of(const Family& family, const Json& values) {
  const auto& types = family.hf().model_types;
  for (const Json* place : {&values, &at(values, "text_config")}) {
    const Json& type = at(*place, "model_type");
    if (type.is_string() &&
        std::ranges::count(types, type.get<std::string>()) != 0)
      return type.get<std::string>();
  }
  return types.empty() ? family.name() : types.front();
}

Json traits_of(const Family& family, const Json& values) {
  const Json& families = facts_table().at("families");
  Json traits = Json::object();
  merge(traits, at(families, family.name().c_str()));
  const std::string type = model_type_of(family, values);
  if (type != family.name()) merge(traits, at(families, type.c_str()));
  return traits;
}

Json prepared(const Family& family, const std::string& side, Json values,
              std::vector<std::string>& defaulted) {
  Json traits = traits_of(family, side == "hf" ? values : Json());
  if (side == "hf")
    prepare_hf(hf_defaults(model_type_of(family, values)), values, defaulted);
  if (side == "mcore") values["window"] = mcore_window(values);
  if (side == "olmo_core") prepare_olmo(values);
  if (side == "fairseq2") prepare_fairseq2(values);
  values["trait"] = std::move(traits);
  return values;
}

}  // namespace ckpt::families
