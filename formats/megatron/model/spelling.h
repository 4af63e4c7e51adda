// SPDX-License-Identifier: Apache-2.0
// One model, spelled in several ways. Inside a layer:
//
//   canonical (transformer_engine)               local modules
//   self_attention.linear_qkv.layer_norm_weight  input_layernorm.weight
//   mlp.linear_fc1.layer_norm_weight             pre_mlp_layernorm.weight
//   …linear_q_up_proj.layer_norm_weight          …q_layernorm.weight
//   …linear_kv_up_proj.layer_norm_weight         …kv_layernorm.weight
//   mlp.experts.linear_fc1.weight7               …local_experts.7.linear_fc1.
//                                                weight
//
// The other modules of its layer tell which one a norm is: before experts,
// pre_mlp_layernorm is a module of its own in both; q_layernorm is latent
// attention's only beside linear_q_up_proj, and where an indexer reads what
// comes out of it, it is a module of its own, too: in each layer of the model,
// as layers without an indexer take what that of another layer picked. Layers
// of multi-token prediction hold a mtp_model_layer (before 2026:
// transformer_layer).
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>

#include "ckpt/catalog.h"
#include "formats/megatron/model/keys.h"

namespace ckpt::megatron {

class Spelling {
 public:
  // For names of modules or numbered sharded keys, in any spelling. `keys` are
  // those of the tensors.
  Spelling(const Catalog& catalog, const KeyList& keys);

  // Removes wrapping prefixes ("module."). Keeps names of unknown modules.
  // `key` is the name's.
  std::string canonical(std::string_view name, const Key& key) const;
  // Takes a canonical name.
  std::string local(std::string_view name, const Key& key) const;

 private:
  struct Layer {
    bool qkv = false;
    bool q_up = false;
    bool kv_up = false;
    bool fc1 = false;
    bool router = false;
    bool own_norms = false;  // Gemma 4: all norms are modules
  };
  const Layer& layer(const std::string& prefix) const;

  std::unordered_map<std::string, Layer> layers_;  // by "decoder.layers.3."
  bool indexed_ = false;                           // some layer has an indexer
};

// Sorts as Megatron's modules list their parameters. What is not a model's
// comes last, in its own order. `keys` are those of the tensors.
void sort_modules(Catalog& catalog, const KeyList& keys, bool local);

}  // namespace ckpt::megatron
