// SPDX-License-Identifier: Apache-2.0
// --layers: makes configurations say how many layers are kept.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/edit/config_edit.h"
#include "api/edit/layer_order.h"
#include "api/edit/layers.h"
#include "ckpt/error.h"
#include "formats/traits.h"
#include "lib/io/file.h"
#include "lib/text/other_json.h"

namespace ckpt::library {
namespace {

using Json = ConfigTable;

constexpr uint64_t kMostYaml = uint64_t{16} << 20;

// Spells out windows of OLMo-core's that depend on which layer is the last.
void spell_windows(Json& model, size_t before) {
  for (const char* name : {"sequence_mixer", "attention"}) {
    if (!model.contains("block") || !model["block"].is_object() ||
        !model["block"].contains(name))
      continue;
    Json& mixer = model["block"][name];
    if (!mixer.is_object() || !mixer.contains("sliding_window") ||
        !mixer["sliding_window"].is_object())
      continue;
    Json& window = mixer["sliding_window"];
    const Json old = window.value("pattern", Json());
    if (!old.is_array() || old.empty()) continue;
    const bool first =
        window.value("force_full_attention_on_first_layer", true);
    const bool last = window.value("force_full_attention_on_last_layer", true);
    Json pattern = Json::array();
    for (size_t l = 0; l < before; ++l) {
      const bool full = (first && l == 0) || (last && l + 1 == before);
      const size_t place = first && l > 0 ? l - 1 : l;
      pattern.push_back(full ? Json(-1) : old[place % old.size()]);
    }
    window["pattern"] = std::move(pattern);
    window["force_full_attention_on_first_layer"] = false;
    window["force_full_attention_on_last_layer"] = false;
  }
}

size_t count_of(const Json& table) {
  for (const std::string_view key : kDepths)
    if (const auto found = table.find(key); found != table.end())
      if (found->is_number_integer() && *found > 0 && *found <= kMostLayers)
        return found->get<size_t>();
  return 0;
}

// Encoder and decoder are cut alike, and may have had numbers of their own.
bool follow_stacks(Json& table, size_t kept) {
  bool changed = false;
  for (const std::string_view key : kStackDepths)
    if (const auto found = table.find(key);
        found != table.end() && found->is_number_integer() && *found > kept) {
      *found = kept;
      changed = true;
    }
  return changed;
}

// Only the first layers are a model. Others keep their numbers and the
// configuration that they are read with.
bool follow(const std::set<uint32_t>& layers, Json& config,
            const std::string& path) {
  if (!config.is_object()) return false;
  bool changed = false, stacked = false;
  for (const char* place : {"", "text_config", "model"}) {
    if (*place && (!config.contains(place) || !config[place].is_object()))
      continue;
    Json& table = *place ? config[place] : config;
    const size_t before = count_of(table), kept = layers.size();
    if (*layers.rbegin() + 1 == kept && follow_stacks(table, kept))
      stacked = true;
    if (before == 0 || kept >= before || *layers.rbegin() + 1 != kept) continue;
    spell_windows(table, before);
    changed = true;
  }
  if (!changed) return stacked;
  return follow_order(config, {layers.begin(), layers.end()}, path) || stacked;
}

// Changes model.yaml, which has flat lines; a list of layers is left to
// fairseq2's reader.
void follow_yaml(const std::set<uint32_t>& layers, Sidecar& sidecar) {
  constexpr std::string_view kKey = "\n  num_layers: ";
  std::string text =
      sidecar.text ? *sidecar.text : io::read_file(sidecar.path, kMostYaml);
  if (text.find("layer_types:") != text.npos) return;
  const size_t at = text.find(kKey);
  if (at == text.npos) return;
  const size_t begin = at + kKey.size();
  const size_t end = std::min(text.find('\n', begin), text.size());
  const std::string count = text.substr(begin, end - begin);
  Json table = {{"num_layers", text::parse_or_discard<Json>(count)}};
  if (!follow(layers, table, sidecar.path)) return;
  text.replace(begin, end - begin, table["num_layers"].dump());
  sidecar.path = "made:" + sidecar.name;
  sidecar.size = text.size();
  sidecar.text = std::make_shared<const std::string>(std::move(text));
}

}  // namespace

void follow_layers(Catalog& catalog, const std::set<uint32_t>& layers) {
  if (layers.empty()) return;
  take_config(catalog);
  const families::Facts before = families::facts_of(catalog);
  for (Sidecar& sidecar : catalog.sidecars)
    if (is_config_file(sidecar))
      edit_config(sidecar, [&](Json& table) {
        return follow(layers, table, sidecar.path);
      });
    else if (sidecar.name == "model.yaml")
      follow_yaml(layers, sidecar);
  for (Object& object : catalog.objects)
    if (is_config_object(object))
      edit_config(object, [&](Json& table) {
        return follow(layers, table, catalog.path);
      });
  // A class's lists have their own length, whatever its number of layers.
  if (formats::traits_of(catalog.format).typed_config) return;
  if (*layers.rbegin() + 1 == layers.size())
    check_kinds(catalog, before, {layers.begin(), layers.end()});
}

bool predicts(const Catalog& catalog) {
  return std::ranges::any_of(catalog.tensors, [](const Tensor& tensor) {
    return tensor.name.find("eh_proj") != std::string::npos ||
           ('.' + tensor.name).find(".mtp.") != std::string::npos;
  });
}

void drop_prediction(Catalog& catalog) {
  const auto none = [](Json& table) {
    bool changed = false;
    for (const char* place : {"", "text_config"}) {
      if (*place && (!table.contains(place) || !table[place].is_object()))
        continue;
      Json& one = *place ? table[place] : table;
      if (!one.is_object()) continue;
      for (auto& [key, value] : one.items()) {
        const bool args = key == "mtp_num_layers";
        if (!args && key != "num_nextn_predict_layers" &&
            key != "mtp_num_hidden_layers")
          continue;
        if (!value.is_number_integer() || value == 0) continue;
        value = args ? Json() : Json(0);  // in args, a number is a block
        changed = true;
      }
    }
    return changed;
  };
  for (Sidecar& sidecar : catalog.sidecars)
    if (is_config_file(sidecar)) edit_config(sidecar, none);
  for (Object& object : catalog.objects)
    if (is_config_object(object)) edit_config(object, none);
}

}  // namespace ckpt::library
