// SPDX-License-Identifier: Apache-2.0
// What config.json says about the blocks: how many there are and, for
// heterogeneous models, what each of them has.
//
//   {"model_type": "llama", "num_hidden_layers": 5, "tie_word_embeddings": …,
//    "block_configs": [{"attention": {"no_op": false, …}, "ffn": {…}}, …]}
//
// In models with a text_config the first three may be in it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::modelopt {

struct BlockConfig {
  // Says nothing if the module was replaced by another one.
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
  bool any_model = false;  // block_configs exists and isn't null
  std::vector<BlockConfig> blocks;
};

// Reads a file; nothing if it does not exist or does not hold a JSON object
// (which the reader has already reported).
std::optional<Config> read_config(const std::string& path);

// From the config.json among the sidecars.
std::optional<Config> config_of(const Catalog& catalog);

}  // namespace ckpt::modelopt
