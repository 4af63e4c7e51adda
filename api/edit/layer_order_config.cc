// SPDX-License-Identifier: Apache-2.0
// --layers with repeats: configurations of a deeper model.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/edit/config_edit.h"
#include "api/edit/layer_order.h"
#include "api/edit/layers.h"
#include "ckpt/error.h"

namespace ckpt::library {
namespace {

using Fields = ConfigTable;

constexpr std::string_view kDepths[] = {"num_hidden_layers", "num_layers",
                                        "n_layer", "n_layers",
                                        "encoder_num_layers"};
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
// Numbers of layers.
constexpr std::string_view kNumbers[] = {"mlp_only_layers", "moe_layers",
                                         "attn_layer_indices"};

class Follower {
 public:
  Follower(const std::vector<uint32_t>& order, const std::string& path)
      : order_(order), path_(path) {}

  bool follow(Fields& config) {
    if (!config.is_object()) return false;
    bool changed = false;
    for (const char* place : {"", "text_config", "model"}) {
      Fields* table = &config;
      if (*place) {
        const auto found = config.find(place);
        if (found == config.end() || !found->is_object()) continue;
        table = &*found;
      }
      const size_t before = depth(*table);
      if (before == 0) continue;
      check(*table, before);
      change(*table, before);
      changed = true;
    }
    return changed;
  }

 private:
  static size_t depth(const Fields& table) {
    for (const std::string_view key : kDepths)
      if (const auto found = table.find(key);
          found != table.end() && found->is_number_integer() && *found > 0 &&
          *found <= kMostLayers)
        return found->get<size_t>();
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
    if (const auto dense = table.find("first_k_dense_replace");
        dense != table.end() && dense->is_number_integer()) {
      bool experts = false;
      for (size_t i = 0; i < order_.size(); ++i) {
        const bool is_dense = *dense > order_[i];
        if (is_dense && experts) refuse(dense.key(), order_[i], i);
        experts = !is_dense;
      }
    }
  }

  void change(Fields& table, size_t before) const {
    for (auto& [key, value] : table.items()) {
      if (std::ranges::count(kDepths, key) != 0 && value == before)
        value = order_.size();
      if (key == "first_k_dense_replace" && value.is_number_integer()) {
        const Fields dense = value;
        value = std::ranges::count_if(
            order_, [&](uint32_t layer) { return dense > layer; });
      }
      if (!value.is_array()) continue;
      Fields list = Fields::array();
      if (std::ranges::count(kNumbers, key) != 0) {
        for (size_t i = 0; i < order_.size(); ++i)
          if (std::ranges::count(value, Fields(order_[i])) != 0)
            list.push_back(i);
      } else if (value.size() == before) {
        for (const uint32_t layer : order_) list.push_back(value[layer]);
      } else {
        continue;
      }
      value = std::move(list);
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

void follow_order(Catalog& catalog, const std::vector<uint32_t>& order) {
  take_config(catalog);
  for (Sidecar& sidecar : catalog.sidecars) {
    if (is_config_file(sidecar))
      edit_config(sidecar, [&](Fields& table) {
        return Follower(order, sidecar.path).follow(table);
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
}

}  // namespace ckpt::library
