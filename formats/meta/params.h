// SPDX-License-Identifier: Apache-2.0
// params.json: the numbers of a model that its tensors alone don't tell.
//
//   {"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8,
//    "vocab_size": 128256, "multiple_of": 1024, "ffn_dim_multiplier": 1.3, …}
//
// Some files have it all inside {"model": {…}}. Mistral's have head_dim and
// hidden_dim.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "ckpt/catalog.h"
#include "lib/pickle/value.h"

namespace ckpt::meta {

struct Params {
  std::optional<uint64_t> dim;
  std::optional<uint64_t> heads;     // n_heads
  std::optional<uint64_t> kv_heads;  // n_kv_heads; equals heads if absent
  std::optional<uint64_t> head_dim;  // dim / n_heads if absent
  std::optional<uint64_t> vocab;     // vocab_size; nothing if it is -1
  bool unsaid_vocab = false;         // it is -1: Llama 1 and 2
  std::string family;                // "llama", "mistral", "mixtral"

  // Rows of wq, of wk and of wv.
  std::optional<uint64_t> query_rows() const;
  std::optional<uint64_t> key_rows() const;
};

// Throws input_error for impossible numbers: no heads, a dim that they do not
// divide. `path` is for messages.
Params parse_params(const nlohmann::json& json, const std::string& path);

// Reads a file. Throws input_error.
Params read_params(const std::string& path);

// The JSON that a dict of plain values stands for. Throws unfaithful_error for
// values that JSON lacks.
nlohmann::ordered_json plain_json(const pickle::Document& document,
                                  pickle::Id value);

// From the object "params", else from params.json, a sidecar or a file beside
// the checkpoint; nothing if there is neither.
std::optional<Params> params_of(const Catalog& catalog);

}  // namespace ckpt::meta
