// SPDX-License-Identifier: Apache-2.0
// What config.json says of the blocks: how many there are, and for
// heterogeneous models what each of them has.
//
//   {"model_type": "llama", "num_hidden_layers": 5, "tie_word_embeddings": …,
//    "block_configs": [{"attention": {"no_op": false, …}, "ffn": {…}}, …]}
//
// In models with a text_config the first three may stand there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::modelopt {

struct BlockConfig {
  // Nothing is said if the module was replaced by another one.
  bool attention = true, ffn = true;                // false: no_op
  bool plain_attention = false, plain_ffn = false;  // sizes below hold
  std::optional<uint64_t> kv_heads;
  std::optional<uint64_t> intermediate;
  std::optional<uint64_t> experts;
};

struct Config {
  std::string model_type;
  bool tied = false;
  std::optional<uint64_t> layers;  // num_hidden_layers
  std::optional<uint64_t> head_dim;
  bool any_model = false;  // block_configs is there and not null
  std::vector<BlockConfig> blocks;
};

// Of a file; nothing if it does not exist or does not hold a JSON object (the
// reader has said so by then).
std::optional<Config> read_config(const std::string& path);

// Of the config.json among the sidecars.
std::optional<Config> config_of(const Catalog& catalog);

}  // namespace ckpt::modelopt
