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

// Where the numbers are in a name.
struct LegacyName {
  struct Number {
    size_t at = 0;  // in the text
    size_t size = 0;
    uint64_t value = 0;
  };
  std::optional<Number> layer;   // of a pipeline's layers; not those of mtp
  std::optional<Number> expert;  // after the layer's, if both are there
  bool is_expert = false;        // an expert's parameter, numbered or not
  // What comes before the layer's number: "decoder.layers."
  std::string stack;
};
LegacyName parse_legacy_name(std::string_view name);

// The name with other numbers in place of its own.
std::string with_numbers(std::string_view name, const LegacyName& parsed,
                         uint64_t layer, uint64_t expert);

// True for tensors of a state dict that the optimizer does not know.
bool is_legacy_buffer(std::string_view name);

// True for vectors and biases, which weight decay spares.
bool spares_decay(std::string_view name, size_t rank);

// True for a vocabulary, whose rows are padded to suit the topology.
bool is_vocabulary(std::string_view name);

bool is_extra_state(std::string_view name);

// The embedding of a tied model with several pipeline stages has a copy at the
// pipeline's end. Returns the embedding's name for the copy's name.
std::optional<std::string> embedding_of_copy(std::string_view name);
bool is_word_embedding(std::string_view name);

}  // namespace ckpt::megatron
