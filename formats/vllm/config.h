// SPDX-License-Identifier: Apache-2.0
// What config.json says about a model that its tensors alone don't tell.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "ckpt/catalog.h"

namespace ckpt::vllm {

struct Config {
  std::string model_type;
  std::optional<uint64_t> hidden;    // hidden_size
  std::optional<uint64_t> heads;     // num_attention_heads
  std::optional<uint64_t> kv_heads;  // num_key_value_heads; else heads
  std::optional<uint64_t> head_dim;  // else hidden_size / heads
  std::optional<uint64_t> vocab;     // vocab_size
  std::optional<uint64_t> experts;   // num_local_experts, num_experts …
  std::optional<uint64_t> layers;    // num_hidden_layers
  std::optional<uint64_t> q_rank;    // q_lora_rank
  std::optional<bool> tied;          // tie_word_embeddings
  bool quantized = false;            // quantization_config is there …
  // … and says fp8 in blocks of this many rows and columns.
  std::optional<std::array<uint64_t, 2>> blocks;

  std::optional<uint64_t> query_rows() const;
  std::optional<uint64_t> key_rows() const;
};

// Reads the config.json among the sidecars; nothing without one. Members of
// text_config count if the top level lacks them. Throws input_error if it is
// not a JSON object or has impossible head counts.
std::optional<Config> config_of(const Catalog& catalog);

}  // namespace ckpt::vllm
