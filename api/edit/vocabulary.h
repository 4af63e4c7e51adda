// SPDX-License-Identifier: Apache-2.0
// --vocab-size under transformers' names: sets the rows of the vocabulary.
//
//   model.embed_tokens.weight [V, width]   its first rows, or all of them
//   lm_head.weight            [V, width]   with zeros behind
//   lm_head.bias              [V]
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::library {

// What was done, "" if nothing was, and what may surprise.
struct NewVocabulary {
  std::string note;
  std::vector<std::string> warnings;
};

// Cuts or pads the embeddings, the heads and their optimizer state;
// config.json's vocab_size follows. No byte moves. Throws unfaithful_error if
// config.json disagrees with the rows, unless `rows` is what either says, and
// for a tensor of unknown name with a dimension of that size.
NewVocabulary set_vocabulary(Catalog& catalog, uint64_t rows);

// The tables have `rows` rows already, and had `before`: config.json's
// vocab_size follows.
void follow_rows_of(Catalog& catalog, uint64_t before, uint64_t rows);

// True for the name of an embedding, a head or its bias.
bool has_row_for_each_token(std::string_view name);

// Of a checkpoint of Megatron's, whose writer cuts and pads the tensors: the
// args and the config.json beside them say so many rows. Returns what may
// surprise.
std::string follow_vocabulary(Catalog& catalog, uint64_t rows);

}  // namespace ckpt::library
