// SPDX-License-Identifier: Apache-2.0
// --layers with repeats: configurations of a deeper model.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/edit/config_edit.h"
#include "api/edit/layer_order.h"
#include "api/edit/layers.h"
#include "api/edit/quantized_modules.h"
#include "ckpt/error.h"
#include "convert/config/facts.h"
#include "lib/text/other_json.h"

namespace ckpt::library {
namespace {

using Fields = ConfigTable;

// Every so many layers one is of another kind. Where a list says the same,
// the list counts.
struct Period {
  std::string_view key;
  std::string_view list;
};
constexpr Period kPeriods[] = {
    {"decoder_sparse_step", ""},
    {"interleave_moe_layer_step", "moe_layers"},
    {"moe_layer_interval", ""},
    {"moe_layer_freq", ""},
    {"sliding_window_pattern", "layer_types"},
    {"full_attn_every_n_layers", "layer_types"},
    {"full_attention_interval", "layer_types"},
    {"no_rope_layer_interval", "no_rope_layers"},
    {"attn_layer_period", ""},
    {"expert_layer_period", ""},
};
// Numbers of layers; those of a pair of lists count from one.
constexpr std::string_view kNumbers[] = {"mlp_only_layers", "moe_layers",
                                         "attn_layer_indices", "full_attn_idxs",
                                         "hybrid_layer_ids"};
constexpr std::string_view kNumbersFrom1[] = {"kda_layers", "full_attn_layers"};
// Layers below this one are of another kind.
constexpr std::string_view kSwitches[] = {
    "first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"};
// The last layers, which read the keys of earlier ones.
constexpr std::string_view kShared = "num_kv_shared_layers";
// One character for each layer, and | between the stages of a pipeline.
constexpr std::string_view kTexts[] = {"hybrid_override_pattern",
                                       "hybrid_layer_pattern"};
// Lists that are not per layer, however many values they have.
constexpr std::string_view kOtherLists[] = {
    "architectures", "time_step_limit", "mlp_multipliers", "ssm_multipliers",
    "mrope_section", "window_size",     "data_path",       "adam_betas"};
// In Megatron's args: keys of config.json that have no name there.
constexpr std::string_view kCarried = "ckpt_config";
// A configuration as a string inside another.
constexpr std::string_view kInside = "heterogeneous_layers_config_encoded_json";

template <size_t N>
bool is_among(const std::string_view (&words)[N], std::string_view word) {
  return std::ranges::find(words, word) != std::end(words);
}

class Follower {
 public:
  Follower(const std::vector<uint32_t>& order, const std::string& path)
      : order_(order), path_(path) {}

  bool follow(Fields& config) {
    if (!config.is_object()) return false;
    bool changed = false;
    const size_t depth_of_args = depth(config);
    for (const std::string_view place :
         {std::string_view(), std::string_view("text_config"),
          std::string_view("model"), kCarried}) {
      Fields* table = &config;
      if (!place.empty()) {
        const auto found = config.find(place);
        if (found == config.end() || !found->is_object()) continue;
        table = &*found;
      }
      const size_t before = place == kCarried ? depth_of_args : depth(*table);
      if (before == 0) continue;
      check(*table, before);
      change(*table, before);
      changed = true;
    }
    return changed;
  }

 private:
  static size_t depth(const Fields& table) {
    const auto number = [&](std::string_view key) -> size_t {
      const auto found = table.find(key);
      return found != table.end() && found->is_number_integer() && *found > 0 &&
                     *found <= kMostLayers
                 ? found->get<size_t>()
                 : 0;
    };
    for (const std::string_view key : kDepths)
      if (const size_t layers = number(key)) return layers;
    for (const std::string_view key : kStackDepths)
      if (const size_t layers = number(key)) return layers;
    return 0;
  }

  [[noreturn]] void refuse(std::string_view key, uint32_t from,
                           size_t to) const {
    throw unfaithful_error({path_, {}},
                           "--layers: layer {} would become layer {}, which "
                           "is of another kind by {}",
                           from, to, key)
        .with_hint("repeat whole periods, in their places");
  }

  void check(const Fields& table, size_t before) const {
    for (const uint32_t layer : order_)
      if (layer >= before)
        throw unfaithful_error(
            {path_, {}}, "--layers: there is no layer {}, the model has {}",
            layer, before);
    for (const Period& period : kPeriods) {
      const auto found = table.find(period.key);
      if (found == table.end() || !found->is_number_integer() || *found < 2)
        continue;
      if (!period.list.empty() && table.contains(period.list)) continue;
      const auto step = found->get<uint64_t>();
      for (size_t i = 0; i < order_.size(); ++i)
        if (order_[i] % step != i % step) refuse(period.key, order_[i], i);
    }
    check_joined(table, before);
    for (const std::string_view key : kSwitches)
      if (const auto found = table.find(key);
          found != table.end() && found->is_number_integer())
        check_switch(key, found->get<int64_t>());
    if (const auto last = table.find("moe_layer_end_index");
        last != table.end() && last->is_number_integer() && *last >= 0)
      check_switch(last.key(), last->get<int64_t>() + 1);
    if (switches_windows(table))
      check_switch("max_window_layers",
                   table.at("max_window_layers").get<int64_t>());
  }

  bool is_whole(size_t before) const {
    bool whole = order_.size() == before;
    for (size_t i = 0; whole && i < before; ++i) whole = order_[i] == i;
    return whole;
  }

  // Gemma 3n and 4: layers that are not by themselves.
  void check_joined(const Fields& table, size_t before) const {
    if (is_whole(before)) return;
    const auto number = [&](std::string_view key) -> uint64_t {
      const auto found = table.find(key);
      return found != table.end() && found->is_number_integer() && *found > 0
                 ? found->get<uint64_t>()
                 : 0;
    };
    for (const std::string_view key :
         {"hidden_size_per_layer_input", "per_layer_embed_dim"})
      if (number(key) != 0)
        throw unfaithful_error({path_, {}},
                               "--layers: {}: one tensor has the embeddings "
                               "of all {} layers",
                               key, before)
            .with_hint("without --layers, all of them are kept");
    const uint64_t shared = std::min<uint64_t>(number(kShared), before);
    for (const uint32_t layer : order_)
      if (layer + shared >= before)
        throw unfaithful_error({path_, {}},
                               "--layers: layer {} has no keys of its own "
                               "({} {})",
                               layer, kShared, shared)
            .with_hint(
                fmt::format("keep some of layers 0-{}", before - shared - 1));
    check_last(table, before);
  }

  // transformers makes Gemma 4's last layer a global one, whose heads have
  // another size.
  void check_last(const Fields& table, size_t before) const {
    if (!table.contains("global_head_dim") &&
        !table.contains("global_kv_channels"))
      return;
    const uint32_t last = order_.back();
    for (const std::string_view key :
         {"layer_types", "window_attn_skip_freq"}) {
      const auto list = table.find(key);
      if (list == table.end() || !list->is_array() || list->size() != before)
        continue;
      const Fields& kind = (*list)[last];
      if (kind == "sliding_attention" || kind == 1 || kind == true)
        throw unfaithful_error({path_, {}},
                               "--layers: the last one would be layer {}, "
                               "which has a window ({}): a last layer never "
                               "has",
                               last, key)
            .with_hint("end with a layer of full attention");
    }
  }

  void check_switch(std::string_view key, int64_t from) const {
    bool behind = false;
    for (size_t i = 0; i < order_.size(); ++i) {
      const bool before = order_[i] < from;
      if (before && behind) refuse(key, order_[i], i);
      behind = !before;
    }
  }

  static bool switches_windows(const Fields& table) {
    const auto found = table.find("max_window_layers");
    const auto used = table.find("use_sliding_window");
    return found != table.end() && found->is_number_integer() &&
           used != table.end() && *used == true &&
           !table.contains("layer_types");
  }

  size_t below(int64_t layer) const {
    return static_cast<size_t>(std::ranges::count_if(
        order_, [&](uint32_t one) { return one < layer; }));
  }

  // The new numbers of the layers in a list.
  Fields numbers(const Fields& value, uint32_t first) const {
    Fields list = Fields::array();
    for (size_t i = 0; i < order_.size(); ++i)
      if (std::ranges::count(value, Fields(order_[i] + first)) != 0)
        list.push_back(i + first);
    return list;
  }

  void change_text(Fields& value, size_t before) const {
    auto kinds = value.get<std::string>();
    std::erase(kinds, '|');
    if (kinds.size() != before) return;
    std::string text;
    for (const uint32_t layer : order_) text += kinds[layer];
    value = text;
  }

  void change_inside(Fields& value) const {
    auto table = text::parse_or_discard<Fields>(value.get<std::string>());
    if (table.is_discarded() || !Follower(order_, path_).follow(table)) return;
    value = table.dump(-1, ' ', false, Fields::error_handler_t::replace);
  }

  void change_number(const std::string& key, Fields& value, size_t before,
                     bool windows) const {
    // Checked: all layers are kept, or none of them.
    if (key == kShared && !is_whole(before)) value = 0;
    if ((is_among(kDepths, key) || is_among(kStackDepths, key)) &&
        value == before)
      value = order_.size();
    if (is_among(kSwitches, key) || (windows && key == "max_window_layers"))
      value = below(value.get<int64_t>());
    else if (key == "moe_layer_end_index" && value >= 0)
      value = static_cast<int64_t>(below(value.get<int64_t>() + 1)) - 1;
  }

  void change_list(const std::string& key, Fields& value, size_t before) const {
    if (is_among(kNumbers, key)) {
      value = numbers(value, 0);
    } else if (value.size() == before && !is_among(kOtherLists, key) &&
               key.find("_token_id") == key.npos) {
      Fields list = Fields::array();
      for (const uint32_t layer : order_) list.push_back(value[layer]);
      value = std::move(list);
    }
  }

  void change(Fields& table, size_t before) const {
    const bool windows = switches_windows(table);
    for (auto& [key, value] : table.items()) {
      if (value.is_number_integer()) change_number(key, value, before, windows);
      if (value.is_array()) change_list(key, value, before);
      if (value.is_string() && is_among(kTexts, key))
        change_text(value, before);
      if (value.is_string() && key == kInside) change_inside(value);
      if (key == "linear_attn_config" && value.is_object())
        for (auto& [name, list] : value.items())
          if (is_among(kNumbersFrom1, name) && list.is_array())
            list = numbers(list, 1);
      if (key == "quantization_config") order_modules(value, order_, path_);
    }
    if (const auto found = table.find("block_overrides");
        found != table.end() && found->is_object()) {
      Fields made = Fields::object();
      for (size_t i = 0; i < order_.size(); ++i)
        if (const auto one = found->find(std::to_string(order_[i]));
            one != found->end())
          made[std::to_string(i)] = *one;
      *found = std::move(made);
    }
  }

  const std::vector<uint32_t>& order_;
  const std::string& path_;
};

}  // namespace

namespace {

// A list with a value for each of `layers`, if the fact has one.
const families::Json* by_layer(const families::Facts& facts,
                               const std::string& name, size_t layers) {
  // Factors of a rotary embedding are lists, but not of layers.
  if (name.starts_with("rope_") || name.starts_with("config.")) return nullptr;
  const auto found = facts.find(name);
  if (found == facts.end() || !found->second.value.is_array() ||
      found->second.value.size() != layers)
    return nullptr;
  return &found->second.value;
}

}  // namespace

void check_kinds(const Catalog& catalog, const families::Facts& before,
                 const std::vector<uint32_t>& order) {
  const families::Facts after = families::facts_of(catalog);
  const auto layers = [](const families::Facts& facts) -> size_t {
    const auto found = facts.find("layers");
    return found != facts.end() && found->second.value.is_number_unsigned()
               ? found->second.value.get<size_t>()
               : 0;
  };
  // Megatron may have two layers for one of transformers'.
  if (layers(after) != order.size() || layers(before) > kMostLayers) return;
  for (const auto& [name, fact] : before) {
    const families::Json* was = by_layer(before, name, layers(before));
    if (!was || fact.weak) continue;
    const families::Json* is = by_layer(after, name, order.size());
    const auto now = [&](size_t i) {  // one value may stand for all
      return is ? (*is)[i] : (*was)[order[0]];
    };
    for (size_t i = 0; i < order.size(); ++i)
      if (order[i] < was->size() && now(i) != (*was)[order[i]])
        throw unfaithful_error(
            {catalog.path, {}},
            "--layers: layer {} would become layer {}, whose {} is {}, not {} "
            "({})",
            order[i], i, name, now(i).dump(), (*was)[order[i]].dump(),
            fact.source)
            .with_hint(
                "repeat whole periods, in their places; or say each "
                "layer's kind in config.json (layer_types)");
  }
}

bool follow_order(nlohmann::ordered_json& config,
                  const std::vector<uint32_t>& order, const std::string& path) {
  return Follower(order, path).follow(config);
}

void follow_order(Catalog& catalog, const std::vector<uint32_t>& order) {
  take_config(catalog);
  const families::Facts before = families::facts_of(catalog);
  for (Sidecar& sidecar : catalog.sidecars) {
    if (is_config_file(sidecar))
      edit_config(sidecar, [&](Fields& table) {
        if (Follower(order, sidecar.path).follow(table)) return true;
        throw unfaithful_error({sidecar.path, {}},
                               "--layers: ckpt knows no key in it for the "
                               "number of layers, so it can't follow")
            .with_hint(
                "--keys GLOB takes layers by their names, as a part of "
                "the model");
      });
    if (sidecar.name == "model.yaml")
      throw unfaithful_error({catalog.path, {}},
                             "--layers: model.yaml says how deep the model is, "
                             "and does not follow repeated layers");
  }
  for (Object& object : catalog.objects)
    if (is_config_object(object))
      edit_config(object, [&](Fields& table) {
        return Follower(order, catalog.path).follow(table);
      });
  check_kinds(catalog, before, order);
}

std::string try_order(Catalog& catalog, const std::vector<uint32_t>& order) {
  const auto sidecars = catalog.sidecars;
  const auto objects = catalog.objects;
  try {
    follow_order(catalog, order);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUnfaithful) throw;
    catalog.sidecars = sidecars;
    catalog.objects = objects;
    return error.problem();
  }
  return {};
}

}  // namespace ckpt::library
