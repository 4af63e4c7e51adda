// SPDX-License-Identifier: Apache-2.0
// The grammar of Megatron's names.
//
//   chained_1. optimizer.state.exp_avg. module. decoder.layers.3.mlp…weight
//   └ chain ─┘ └──── optimizer ───────┘ └prefix┘└──────── name ───────────┘
//                                       └───────────── model ─────────────┘
//
//   decoder.layers.mlp.linear_fc1.weight            axis 0 is the layer
//   decoder.layers.3.mlp.linear_fc1.weight          the layer is in the name
//   decoder.layers.mlp.experts.experts.linear_fc1.weight   layer, expert axis
//   …mlp.experts.linear_fc1.weight7, …local_experts.7.…    legacy names
//
//   <key>/shard_<offset>_<shape>                    one object of a grid
//   rng_state/shard_0.1_2.2                         row 0, column 1 of 2 x 2
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::megatron {

//   vision_tower.encoder.layers.3.mlp.fc1.weight   of a module beside the
//   language model, whose own names then begin with language_model.

// All views point into the parsed text.
struct Key {
  std::string_view chain;          // "chained_1.", or ""
  std::string_view state;          // "exp_avg"; "": a model tensor
  std::string_view model;          // the model's key, with its prefix
  std::string_view prefix;         // "module.", or ""
  std::string_view name;           // the model's key without it
  bool rooted = false;             // in one of Megatron's module trees
  bool tower = false;              // of another modality, beside such a tree
  std::optional<uint64_t> layer;   // numbered
  std::optional<uint64_t> expert;  // numbered
  bool layer_axis = false;         // prepended; before …
  bool expert_axis = false;        // … this one
  bool is_expert() const { return expert_axis || expert.has_value(); }
  uint32_t axes() const { return uint32_t{layer_axis} + uint32_t{expert_axis}; }
};
Key parse_key(std::string_view text);

// The keys of tensors' names, in order, for the length of one step: they point
// into the names, so they hold until a tensor is renamed or moved.
using KeyList = std::vector<Key>;
KeyList keys_of(const std::vector<Tensor>& tensors);

// The "decoder.layers.3." of a name, with its prefix; "" if it has no numbered
// layer.
std::string layer_prefix(const Key& key);
std::string layer_prefix(std::string_view text);

// Replaces `from` by `to`, if the text begins with it.
bool replace_front(std::string& text, std::string_view from,
                   std::string_view to);

// A key of flat buffers: "…gbuf_idx_0.dtype_(…).bucket_idx_0.exp_avg".
bool is_bucket_key(std::string_view text);

// "a.b/shard_0.1_2.2". Nothing for any other name, or if offset and grid don't
// match.
struct ObjectKey {
  std::string_view key;
  std::vector<uint64_t> offset;
  std::vector<uint64_t> grid;
};
std::optional<ObjectKey> parse_object_key(std::string_view text);
std::string object_key(std::string_view key, std::span<const uint64_t> offset,
                       std::span<const uint64_t> grid);

// Where a tensor is in a pipeline: with its layer, or at one end.
enum class Where : uint8_t { kFirst, kLayer, kLast, kAnywhere };
Where place_of(const Key& key);

}  // namespace ckpt::megatron
