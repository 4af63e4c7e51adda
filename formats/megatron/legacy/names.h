// SPDX-License-Identifier: Apache-2.0
// Names of module parameters in a rank's file, and in the whole model.
//
//   decoder.layers.0.mlp.experts.linear_fc1.weight1     in mp_rank_00_001_003
//                  │                              │
//                  └ 0 + layers before this chunk └ 1 + 3 * experts per rank
//   decoder.layers.16.mlp.experts.linear_fc1.weight7    in the model
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::megatron {

// Where the numbers stand in a name.
struct LegacyName {
  struct Number {
    size_t at = 0;  // in the text
    size_t size = 0;
    uint64_t value = 0;
  };
  std::optional<Number> layer;   // of a pipeline's layers; not those of mtp
  std::optional<Number> expert;  // behind the layer's, if there are both
  bool is_expert = false;        // an expert's parameter, numbered or not
  // What comes before the layer's number: "decoder.layers."
  std::string stack;
};
LegacyName parse_legacy_name(std::string_view name);

// The name with other numbers in the places of its own.
std::string with_numbers(std::string_view name, const LegacyName& parsed,
                         uint64_t layer, uint64_t expert);

// Tensors of a state dict that the optimizer knows nothing of.
bool is_legacy_buffer(std::string_view name);

// Weight decay spares vectors and biases.
bool spares_decay(std::string_view name, size_t rank);

// The rows of the vocabulary are padded to the topology's needs.
bool is_vocabulary(std::string_view name);

bool is_extra_state(std::string_view name);

// The embedding of a tied model with several pipeline stages has a copy at
// the pipeline's end: the name of the embedding for the copy's name.
std::optional<std::string> embedding_of_copy(std::string_view name);
bool is_word_embedding(std::string_view name);

}  // namespace ckpt::megatron
