// SPDX-License-Identifier: Apache-2.0
#include "formats/fairseq2/order.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>

#include "ckpt/error.h"
#include "lib/text/number.h"

namespace ckpt::fairseq2 {
namespace {

using Names = std::initializer_list<std::string_view>;

uint64_t rank_in(Names names, std::string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  return static_cast<uint64_t>(found - names.begin());
}

// The part before the next dot; `rest` becomes what follows it.
std::string_view next_part(std::string_view& rest) {
  const size_t dot = rest.find('.');
  const std::string_view part = rest.substr(0, dot);
  rest = dot == rest.npos ? std::string_view() : rest.substr(dot + 1);
  return part;
}

uint64_t module_rank(std::string_view part, bool norms_last) {
  const Names before = {"ffn1_layer_norm",
                        "ffn1",
                        "self_attn_layer_norm",
                        "self_attn",
                        "conv_layer_norm",
                        "conv",
                        "encoder_decoder_attn_layer_norm",
                        "encoder_decoder_attn",
                        "ffn_layer_norm",
                        "ffn",
                        "ffn2_layer_norm",
                        "ffn2",
                        "layer_norm"};
  const Names behind = {"self_attn", "self_attn_layer_norm", "ffn",
                        "ffn_layer_norm"};
  return rank_in(norms_last ? behind : before, part);
}

uint64_t leaf_rank(std::string_view part) {
  return rank_in({"q_proj", "k_proj", "v_proj", "q_norm", "k_norm", "sdpa",
                  "gate_proj", "inner_proj", "output_proj"},
                 part);
}

// Sorts in module order.
using Rank = std::array<uint64_t, 5>;

Rank rank_of(std::string_view name, std::string_view family) {
  const LayerName layer = layer_of(name);
  std::string_view rest = name;
  Rank rank{};
  rank[0] = rank_in({"encoder_frontend", "encoder", "decoder_frontend",
                     "decoder", "final_proj"},
                    next_part(rest));
  rank[4] = rank_in({"weight", "bias"}, name.substr(name.rfind('.') + 1));
  if (layer.stack.empty()) {
    rank[1] = UINT64_MAX;
    return rank;
  }
  rest = layer.rest;
  rank[1] = layer.index;
  rank[2] = module_rank(next_part(rest), family == "olmo");
  rank[3] = leaf_rank(next_part(rest));
  return rank;
}

bool is_frontend(std::string_view name) {
  const std::string_view first = name.substr(0, name.find('.'));
  return first.find("frontend") != first.npos;
}

// The number of layers in each stack: "encoder" counts before "decoder".
struct Stacks {
  uint64_t encoder = 0;
  uint64_t decoder = 0;
  uint64_t total() const { return encoder + decoder; }
  static bool is_encoder(std::string_view stack) {
    return stack == "encoder" || stack.ends_with(".encoder");
  }
};

Stacks count_layers(const std::vector<std::string>& names) {
  Stacks stacks;
  for (const std::string& name : names) {
    const LayerName layer = layer_of(name);
    if (layer.stack.empty()) continue;
    uint64_t& count =
        Stacks::is_encoder(layer.stack) ? stacks.encoder : stacks.decoder;
    count = std::max(count, layer.index + 1);
  }
  return stacks;
}

// "0-1 | 2-3"
std::string describe(uint64_t layers, uint32_t stages) {
  // Stage s has the layers l for which l * stages / layers == s.
  const auto begin = [&](uint64_t stage) {
    return (stage * layers + stages - 1) / stages;
  };
  std::string text;
  for (uint64_t stage = 0; stage < stages; ++stage)
    text += fmt::format("{}{}-{}", stage == 0 ? "" : " | ", begin(stage),
                        begin(stage + 1) - 1);
  return text;
}

}  // namespace

LayerName layer_of(std::string_view name) {
  constexpr std::string_view kLayers = ".layers.";
  if (is_frontend(name)) return {};
  const size_t at = name.find(kLayers);
  if (at == name.npos) return {};
  const std::string_view stack = name.substr(0, at);
  const bool known = stack == "decoder" || stack.ends_with(".decoder") ||
                     Stacks::is_encoder(stack);
  LayerName layer{stack, 0, name.substr(at + kLayers.size())};
  const auto index = text::take_number(layer.rest, UINT32_MAX);
  if (!known || !index || !layer.rest.starts_with('.')) return {};
  layer.index = *index;
  layer.rest.remove_prefix(1);
  return layer;
}

void sort_by_module(std::vector<std::string>& names, std::string_view family) {
  std::ranges::stable_sort(names, {}, [family](const std::string& name) {
    return rank_of(name, family);
  });
}

std::vector<uint32_t> assign_stages(const std::vector<std::string>& names,
                                    uint32_t stages, std::string& assumption) {
  const Stacks stacks = count_layers(names);
  if (stacks.total() < stages)
    throw unfaithful_error({}, "{} pipeline stages for {} layers", stages,
                           stacks.total())
        .with_hint(fmt::format("--pp {} is the most",
                               std::max<uint64_t>(1, stacks.total())));
  const auto stage_of = [&](uint64_t layer) {
    return static_cast<uint32_t>(layer * stages / stacks.total());
  };
  std::vector<uint32_t> all;
  for (const std::string& name : names) {
    const LayerName layer = layer_of(name);
    if (!layer.stack.empty()) {
      const bool encoder = Stacks::is_encoder(layer.stack);
      all.push_back(stage_of(layer.index + (encoder ? 0 : stacks.encoder)));
    } else if (is_frontend(name)) {
      all.push_back(0);
    } else if (name.starts_with("encoder.") && stacks.encoder > 0) {
      all.push_back(stage_of(stacks.encoder - 1));
    } else {
      all.push_back(stages - 1);
    }
  }
  assumption = fmt::format(
      "pipeline stages: layers {}; frontend first, norm and projection last",
      describe(stacks.total(), stages));
  return all;
}

}  // namespace ckpt::fairseq2
