// SPDX-License-Identifier: Apache-2.0
// What a step's model_config.json says of nanotron's Llama and Qwen2, and the
// model of transformers that computes the same. Private to this room.
//
//   is_llama_config                            llama
//   is_qwen2_config, with attention_bias       qwen2
//     with no_rope_layer N                     smollm3: no rotary embedding in
//                                              layers N, 2N … (from 1)
//     with neither                             llama
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/note.h"

namespace ckpt::runs {

inline constexpr std::string_view kNanotronEmbedding =
    "model.token_position_embeddings.pp_block.token_embedding.weight";

struct NanotronModel {
  std::string heads_said;  // the file that says how many there are
  uint64_t width = 0, queries = 0, keys = 0;
  bool pairs = false;    // rotary pairs are adjacent, not halves
  bool biased = false;   // queries, keys and values are
  uint64_t no_rope = 0;  // N above; 0: every layer has rotary embeddings
  std::string config;    // config.json; "": one is beside the step
  std::vector<Problem> problems;
};

// Throws unfaithful_error without the file, for other models, for keys whose
// effect is not known, and where the step's tensors or a config.json beside it
// disagree.
NanotronModel read_nanotron_model(const Catalog& source);

}  // namespace ckpt::runs
