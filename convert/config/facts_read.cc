// SPDX-License-Identifier: Apache-2.0
// Configurations, in the form that the ledger's expressions read.
#include <algorithm>
#include <cmath>
#include <set>

#include "ckpt/error.h"
#include "convert/config/facts_olmo.h"
#include "convert/config/facts_table.h"
#include "lib/embedded.h"
#include "lib/pickle/config.h"
#include "lib/text/words.h"

namespace ckpt::families {
namespace {

const Json kNull;

const Json& at(const Json& object, const char* key) {
  if (!object.is_object()) return kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

// Sizes: a configuration without them says nothing, whatever its class has.
constexpr std::string_view kSizes =
    "num_hidden_layers hidden_size num_attention_heads intermediate_size "
    "vocab_size n_layer n_embd n_head n_positions n_inner head_dim "
    "num_experts num_local_experts n_routed_experts num_experts_per_tok "
    "moe_intermediate_size ffn_hidden_size num_kv_heads qk_head_dim "
    "tie_word_embeddings shared_expert_intermediate_size "
    "max_position_embeddings original_max_position_embeddings rope";

void merge(Json& into, const Json& from) {
  if (!from.is_object()) return;
  for (const auto& [key, value] : from.items())
    if (!value.is_null()) into[key] = value;
}

// Settles what is stated although it follows from the rest, and what follows
// from it.
void settle_yarn(const Json& values, Json& rope) {
  const Json& most = at(values, "max_position_embeddings");
  const Json& first = at(rope, "original_max_position_embeddings");
  if (at(rope, "factor").is_null() && most.is_number() && first.is_number() &&
      first > 0)
    rope["factor"] = most.get<double>() / first.get<double>();
  const Json& factor = at(rope, "factor");
  const Json& attention = at(rope, "attention_factor");
  if (!factor.is_number() || factor <= 1 || !attention.is_number()) return;
  const double usual = 0.1 * std::log(factor.get<double>()) + 1;
  const bool scaled =
      truthy(at(rope, "mscale")) && truthy(at(rope, "mscale_all_dim"));
  if (!scaled && std::abs(attention.get<double>() - usual) < 1e-9 * usual)
    rope.erase("attention_factor");
}

[[noreturn]] void not_a(const char* source, const char* key, const Json& value,
                        const char* what) {
  throw input_error({source, {}}, "{} is {}, expected {}", key,
                    pickle::is_foreign(value) ? pickle::foreign_name(value)
                                              : shown_fact(value),
                    what)
      .with_hint("put that value right in the file");
}

// Both spellings: rope_parameters of v5, rope_theta and rope_scaling of v4.
// Only classes with a rope for each type of layer read one in rope_parameters.
Json hf_rope(const Json& values, const Json& defaults, bool by_type) {
  Json rope = Json::object();
  Json usual = at(defaults, "rope");
  const bool whole_heads = at(usual, "reads_fraction") == Json(false);
  if (usual.is_object()) usual.erase("reads_fraction");
  // The class fills in only what is absent: a null stays null.
  if (values.contains("partial_rotary_factor") && usual.is_object())
    usual.erase("partial_rotary_factor");
  // Any rope of its own replaces the class's scaling.
  if (!truthy(at(values, "rope_parameters")) &&
      !truthy(at(values, "rope_scaling")))
    merge(rope, usual);
  for (const char* key : {"rope_theta", "partial_rotary_factor"})
    if (!at(usual, key).is_null()) rope[key] = at(usual, key);
  // Given both spellings, transformers takes the old one and nothing of the
  // other, unless that is by type of layer.
  const Json& old = at(values, "rope_scaling");
  const Json& both = at(values, "rope_parameters");
  const Json& full = at(both, "full_attention");
  for (const char* key : {"rope_scaling", "rope_parameters"})
    if (const Json& given = at(values, key);
        !given.is_object() && truthy(given))
      not_a("config.json", key, given, "an object");
  for (const char* key : {"rotary_emb_base", "rope_theta"})
    if (!at(values, key).is_null()) rope["rope_theta"] = at(values, key);
  for (const char* key : {"rotary_pct", "partial_rotary_factor"})
    if (!at(values, key).is_null())
      rope["partial_rotary_factor"] = at(values, key);
  if (by_type && full.is_object())
    merge(rope, full);
  else if (!truthy(old))
    merge(rope, both);
  merge(rope, old);
  Json type = at(rope, "rope_type").is_null() ? at(rope, "type")
                                              : at(rope, "rope_type");
  if (type == "su") type = "longrope";
  rope.erase("type");
  rope.erase("rope_type");
  if (!type.is_null() && type != "default" && type != "mrope")
    rope["type"] = type;
  // Whatever scales positions looks at the model's own keys again, and they
  // win.
  const bool scales = type == "linear" || type == "dynamic" || type == "yarn" ||
                      type == "longrope" || type == "llama3";
  const Json& part =
      at(values.contains("partial_rotary_factor") ? values : usual,
         "partial_rotary_factor");
  if (scales && !part.is_null()) rope["partial_rotary_factor"] = part;
  // Where nothing scales, it is the class's own code that reads the key, or
  // not.
  if (whole_heads && !rope.contains("type"))
    rope.erase("partial_rotary_factor");
  const Json& first = at(values, "original_max_position_embeddings");
  if (!first.is_null() && scales && type != "linear" && type != "dynamic")
    rope["original_max_position_embeddings"] = first;
  if (type == "yarn") settle_yarn(values, rope);
  return rope;
}

// Megatron's window is (left, right): so many tokens before this one, -1 for
// all. Its parser makes a tuple of them.
Json mcore_window(const Json& values) {
  Json window = Json::object();
  const Json& size = at(values, "window_size");
  const bool pair = size.is_array() && size.size() == 2 &&
                    size[0].is_number_integer() && size[1].is_number_integer();
  if (pair && size[0] >= 0) window["size"] = size[0].get<int64_t>() + 1;
  if (size.is_number_integer() && size > 0) window["size"] = size;
  if (!pair && !size.is_number_integer() && truthy(size))
    not_a("args", "window_size", size, "two whole numbers");
  const Json& skip = at(values, "window_attn_skip_freq");
  if (skip.is_array() && !pickle::is_foreign(skip)) window["list"] = skip;
  if (skip.is_number_integer() && skip > 0) window["every"] = skip;
  if (!window.contains("list") && !skip.is_number_integer() && truthy(skip))
    not_a("args", "window_attn_skip_freq", skip, "a whole number or a list");
  return window;
}

// What the ledger's expressions read of any config.json, but for the keys that
// code for all types reads: those of rotary positions, and what transformers'
// masks look at (masking_utils.py).
const std::set<std::string>& keys_of_ledger() {
  static const std::set<std::string> keys = [] {
    std::set<std::string> read;
    for (const Json& group : facts_table().at("groups"))
      for (const auto& item : group.at("facts").items()) {
        const Json& how = at(item.value(), "hf");
        if (how.is_null()) continue;
        const Expr parsed((how.is_object() ? how.at("of") : how)
                              .get_ref<const std::string&>());
        read.insert(parsed.names().begin(), parsed.names().end());
      }
    for (const char* key : {"eps", "theta", "max_position_embeddings",
                            "original_max_position_embeddings", "is_causal"})
      read.erase(key);
    return read;
  }();
  return keys;
}

// A key that the type's class does not read is no fact, whatever it is in other
// types: transformers computes the same without it. unknown_keys() names it.
void drop_unread(const Family& family, const Json& says, const Json& defaults,
                 Json& values) {
  if (defaults.empty()) return;
  const std::set<std::string> variables = keys_of_variables(family);
  for (const std::string& key : keys_of_ledger())
    if (!defaults.contains(key) && !says.contains(key) &&
        !variables.contains(key))
      values.erase(key);
}

void prepare_hf(const Family& family, const Json& traits, Json& values,
                std::vector<std::string>& defaulted) {
  const Json& defaults = hf_defaults(model_type_of(family, values));
  drop_beside_text_config(values, family.hf().text_type, family.hf().outer);
  const Json text = at(values, "text_config");
  const Json tied = at(values, "tie_word_embeddings");
  merge(values, text);
  // The model's own, which its language model's class does not read.
  if (!tied.is_null()) values["tie_word_embeddings"] = tied;
  // Where positions are learned, what a file says of rotary ones is a leftover.
  const Json& positions = at(traits, "positions");
  const bool turns = positions != "learned" && positions != "relative";
  values["rope"] = turns ? hf_rope(values, defaults, has_rope_by_type(traits))
                         : Json::object();
  drop_unread(family, at(traits, "says"), defaults, values);
  for (const auto& [key, value] : defaults.items()) {
    if (values.contains(key)) continue;
    if (text::has_word(kSizes, key)) continue;
    values[key] = value;
    defaulted.push_back(key);
  }
}

// {"0": a, "1": b}, as model_yaml.h has lists.
Json listed(const Json& items) {
  if (!items.is_object()) return items;
  Json list = Json::array();
  for (size_t i = 0; i < items.size(); ++i)
    list.push_back(at(items, std::to_string(i).c_str()));
  return list;
}

void prepare_fairseq2(Json& values) {
  if (values.contains("layer_types"))
    values["layer_types"] = listed(values["layer_types"]);
  // Its code does not scale models without windows.
  if (at(values, "sliding_window").is_null()) values.erase("yarn_scale_config");
  const Json factors =
      listed(at(at(values, "rope_scale"), "frequency_factors"));
  if (!factors.is_array() || factors.size() != 2) return;
  values["rope_low"] = factors[0];
  values["rope_high"] = factors[1];
}

}  // namespace

bool has_rope_by_type(const Json& traits) {
  return truthy(at(traits, "local_rope")) ||
         truthy(at(traits, "rope_full_only"));
}

const Json& facts_table() {
  static const Json table = Json::parse(embedded_text("facts"));
  return table;
}

Json spelled(Json value) {
  if (value.is_structured())
    for (Json& item : value) item = spelled(std::move(item));
  if (!value.is_number_float()) return value;
  const double number = value.get<double>();
  if (std::isfinite(number)) return value;
  const char* name = number < 0 ? "-Infinity" : "Infinity";
  return Json::object({{"__float__", std::isnan(number) ? "NaN" : name}});
}

std::set<std::string> keys_of_variables(const Family& family) {
  std::set<std::string> keys;
  for (const Dialect& dialect : family.dialects())
    for (const auto& variable : dialect.vars) {
      const auto how = variable.second.find("hf");
      if (how == variable.second.end()) continue;
      const Expr parsed(how->second);
      for (const std::string& name : parsed.names())
        keys.insert(name.substr(0, name.find('.')));
    }
  return keys;
}

std::string model_type_of(const Family& family, const Json& values) {
  if (!family.hf().text_type.empty()) return family.hf().text_type;
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
  for (size_t i = family.bases().size(); i > 0; --i)
    merge(traits, at(families, family.bases()[i - 1].c_str()));
  merge(traits, at(families, family.name().c_str()));
  merge(traits, family.traits());
  if (family.traits().is_object())
    for (const auto& [key, value] : family.traits().items())
      if (value.is_null()) traits.erase(key);
  for (const std::string& key : family.hf().outer)
    traits["carry"].push_back(key);
  const std::string type = model_type_of(family, values);
  if (type != family.name()) merge(traits, at(families, type.c_str()));
  return traits;
}

Json prepared(const Family& family, const std::string& side, Json values,
              std::vector<std::string>& defaulted) {
  Json traits = traits_of(family, side == "hf" ? values : Json());
  if (side == "hf") prepare_hf(family, traits, values, defaulted);
  if (side == "mcore") values["window"] = mcore_window(values);
  if (side == "olmo_core") prepare_olmo(values);
  if (side == "fairseq2") prepare_fairseq2(values);
  values["trait"] = std::move(traits);
  return values;
}

}  // namespace ckpt::families
