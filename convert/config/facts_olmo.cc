// SPDX-License-Identifier: Apache-2.0
#include "convert/config/facts_olmo.h"

#include <algorithm>

namespace ckpt::families {
namespace {

constexpr uint64_t kMostLayers = 100'000;

const Json& at(const Json& object, const char* key) {
  static const Json nothing;
  if (!object.is_object()) return nothing;
  const auto found = object.find(key);
  return found == object.end() ? nothing : *found;
}

uint64_t layers_of(const Json& model) {
  const Json& layers = at(model, "n_layers");
  const bool sane =
      layers.is_number_integer() && layers > 0 && layers <= kMostLayers;
  return sane ? layers.get<uint64_t>() : 0;
}

// Old configurations say "attention".
const Json& mixer_of(const Json& block) {
  const Json& mixer = at(block, "sequence_mixer");
  return mixer.is_object() ? mixer : at(block, "attention");
}

Json number_or(const Json& object, const char* key, double fallback) {
  const Json& value = at(object, key);
  return value.is_number() ? value : Json(fallback);
}

// By the class or, since that may be missing, by what only one of them has.
std::string kind_of(const Json& scaling) {
  const Json& name = at(scaling, "_CLASS_");
  const std::string text = name.is_string() ? name.get<std::string>() : "";
  if (text.ends_with("YaRNRoPEScalingConfig") || scaling.contains("beta_fast"))
    return "yarn";
  // Those below may scale the attention as well, which YaRN always does.
  if (number_or(scaling, "attention_rescale_factor", 1) != 1) return "other";
  if (text.ends_with("StepwiseRoPEScalingConfig") ||
      scaling.contains("low_freq_proportion"))
    return "llama3";
  if (text.ends_with("ABFRoPEScalingConfig") || scaling.contains("new_theta"))
    return "base";
  if (text.ends_with("PIRoPEScalingConfig")) return "linear";
  return "other";
}

Json rope_of(const Json& mixer, const Json& scaling) {
  Json rope =
      at(mixer, "rope").is_object() ? at(mixer, "rope") : Json::object();
  rope.erase("scaling");
  if (!scaling.is_object()) return rope;
  const std::string kind = kind_of(scaling);
  if (kind == "base") {
    rope["theta"] = number_or(scaling, "new_theta", 8'000'000);
    return rope;
  }
  rope["type"] = kind;
  rope["factor"] = number_or(scaling, "factor",
                             kind == "yarn" ? 8 : (kind == "linear" ? 2 : 32));
  rope["original_max_position_embeddings"] =
      number_or(scaling, "old_context_len", 8192);
  if (kind == "yarn") {
    rope["beta_fast"] = number_or(scaling, "beta_fast", 32);
    rope["beta_slow"] = number_or(scaling, "beta_slow", 1);
  } else if (kind == "llama3") {
    const auto low = number_or(scaling, "low_freq_proportion", 0);
    const auto high = number_or(scaling, "high_freq_proportion", 0.25);
    rope["low_freq_factor"] = 1.0 / (1.0 - low.get<double>());
    rope["high_freq_factor"] = 1.0 / high.get<double>();
  }
  return rope;
}

// Tokens that each layer sees, 0 for all; an empty list if there is no window.
Json windows_of(const Json& model, const Json& mixer) {
  const Json& sliding = at(mixer, "sliding_window");
  const Json& pattern = at(sliding, "pattern");
  Json list = Json::array();
  if (!pattern.is_array() || pattern.empty()) return list;
  const bool first =
      at(sliding, "force_full_attention_on_first_layer") != false;
  const bool last = at(sliding, "force_full_attention_on_last_layer") != false;
  const size_t count = layers_of(model);
  for (size_t layer = 0; layer < count; ++layer) {
    const bool full = (first && layer == 0) || (last && layer + 1 == count);
    const size_t place = first && layer > 0 ? layer - 1 : layer;
    const Json& size = pattern[place % pattern.size()];
    const bool windowed = !full && size.is_number_integer() && size > 0;
    list.push_back(windowed ? size : Json(0));
  }
  return list;
}

Json without_scaling(Json block) {
  for (const char* name : {"sequence_mixer", "attention"})
    if (at(block, name).is_object() && at(block[name], "rope").is_object())
      block[name]["rope"].erase("scaling");
  return block;
}

// What the layers scale by. Blocks that differ in more than that are a model
// that no other dialect has.
struct Scaling {
  Json value;                  // of the layers that scale
  std::string layers = "all";  // or "full" (those without a window), or "some"
  bool odd = false;
};

Scaling scaling_of(const Json& model, const Json& block, const Json& windows) {
  const Json& base = at(at(mixer_of(block), "rope"), "scaling");
  const Json& overrides = at(model, "block_overrides");
  Scaling found{.value = base};
  if (!overrides.is_object() || overrides.empty()) return found;
  const Json plain = without_scaling(block);
  const size_t count = layers_of(model);
  std::vector<bool> scaled(count, !base.is_null());
  for (const auto& [layer, other] : overrides.items()) {
    const Json& scaling = at(at(mixer_of(other), "rope"), "scaling");
    const bool number = !layer.empty() && layer.size() < 7 &&
                        layer.find_first_not_of("0123456789") == layer.npos;
    const size_t place = number ? std::stoul(layer) : count;
    if (place >= count || without_scaling(other) != plain ||
        (!scaling.is_null() && !found.value.is_null() &&
         scaling != found.value)) {
      found.odd = true;
      return found;
    }
    scaled[place] = !scaling.is_null();
    if (found.value.is_null()) found.value = scaling;
  }
  const auto is_full = [&](size_t l) {
    return windows.empty() || windows[l] == 0;
  };
  bool all = true, full = true;
  for (size_t l = 0; l < count; ++l) {
    all = all && scaled[l];
    full = full && scaled[l] == is_full(l);
  }
  found.layers = all ? "all" : (full ? "full" : "some");
  return found;
}

// Sizes of windows, cut to the shortest list that repeats.
Json pattern_of(const Facts& facts, size_t layers) {
  const auto window = facts.find("window");
  Json list = Json::array();
  if (window == facts.end()) return list;
  const Json& value = window->second.value;
  const auto size_of = [](const Json& size) {
    return size.is_number_integer() && size > 0 ? size : Json(-1);
  };
  if (!value.is_array()) {
    if (size_of(value) != -1) list.push_back(value);
    return list;
  }
  for (const Json& size : value) list.push_back(size_of(size));
  for (size_t length = 1; length < layers && list.size() == layers; ++length) {
    bool repeats = true;
    for (size_t l = length; repeats && l < layers; ++l)
      repeats = list[l] == list[l - length];
    if (!repeats) continue;
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(length), list.end());
  }
  return list;
}

Json value_of(const Facts& facts, const char* name) {
  const auto found = facts.find(name);
  return found == facts.end() ? Json() : found->second.value;
}

// A whole number as an int, as OLMo-core stores it.
Json as_whole(const Json& value) {
  if (!value.is_number_float()) return value;
  const double number = value.get<double>();
  const auto whole = static_cast<int64_t>(number);
  return static_cast<double>(whole) == number ? Json(whole) : value;
}

Json scaling_from(const Facts& facts) {
  const Json type = value_of(facts, "rope_type");
  const auto factor = [&](const char* name) {
    const Json value = value_of(facts, name);
    return value.is_number() && value > 0 ? value.get<double>() : 1.0;
  };
  const std::string room = "olmo_core.nn.rope.";
  Json scaling;
  if (type == "linear") scaling["_CLASS_"] = room + "PIRoPEScalingConfig";
  if (type == "llama3") {
    scaling["_CLASS_"] = room + "StepwiseRoPEScalingConfig";
    scaling["low_freq_proportion"] = 1.0 - 1.0 / factor("rope_low_freq_factor");
    scaling["high_freq_proportion"] = 1.0 / factor("rope_high_freq_factor");
  }
  if (type == "yarn") {
    scaling["_CLASS_"] = room + "YaRNRoPEScalingConfig";
    scaling["beta_fast"] = as_whole(value_of(facts, "rope_beta_fast"));
    scaling["beta_slow"] = as_whole(value_of(facts, "rope_beta_slow"));
  }
  if (scaling.is_null()) return scaling;
  scaling["factor"] = value_of(facts, "rope_factor");
  if (type != "linear")
    scaling["old_context_len"] =
        as_whole(value_of(facts, "rope_original_positions"));
  return scaling;
}

// Sets it for each norm: the table has what the source's dialect says, which
// fairseq2 fixes in its code.
void set_epsilon(const Json& epsilon, Json& config) {
  if (!epsilon.is_number() || !config.is_structured()) return;
  for (auto& [key, value] : config.items()) {
    set_epsilon(epsilon, value);
    if (key == "eps" && value.is_number()) value = epsilon;
  }
}

}  // namespace

void prepare_olmo(Json& values) {
  const Json model = at(values, "model");
  const Json block = at(model, "block");
  const Json mixer = mixer_of(block);
  Json windows = windows_of(model, mixer);
  const Scaling scaling = scaling_of(model, block, windows);
  values["rope"] = rope_of(mixer, scaling.value);
  values["rope_scaled"] = scaling.layers;
  values["window"] = Json::object();
  if (!windows.empty()) values["window"]["list"] = std::move(windows);
  if (scaling.odd) values["odd"] = "block_overrides";
  if (at(model, "block_pattern").is_array()) values["odd"] = "block_pattern";
  values["mixer"] = mixer;
}

void complete_olmo(const Facts& facts, Json& config) {
  if (!at(at(config, "model"), "block").is_object()) return;
  set_epsilon(value_of(facts, "norm_epsilon"), config);
  Json& model = config["model"];
  Json& mixer = model["block"]["sequence_mixer"];
  const size_t count = layers_of(model);
  if (Json pattern = pattern_of(facts, count); !pattern.empty())
    mixer["sliding_window"] = {
        {"pattern", std::move(pattern)},
        {"force_full_attention_on_first_layer", false},
        {"force_full_attention_on_last_layer", false},
        {"_CLASS_", "olmo_core.nn.attention.SlidingWindowAttentionConfig"}};
  const Json scaling = scaling_from(facts);
  if (scaling.is_null()) return;
  if (value_of(facts, "rope_scaled_layers") != "full") {
    mixer["rope"]["scaling"] = scaling;
    return;
  }
  const Json windows = windows_of(model, mixer);
  Json scaled = model["block"];
  scaled["sequence_mixer"]["rope"]["scaling"] = scaling;
  Json overrides = Json::object();
  for (size_t l = 0; l < count; ++l)
    if (windows.empty() || windows[l] == 0)
      overrides[std::to_string(l)] = scaled;
  if (!overrides.empty()) model["block_overrides"] = std::move(overrides);
}

}  // namespace ckpt::families
