// SPDX-License-Identifier: Apache-2.0
// --vocab-size under transformers' names: sets the rows of the vocabulary.
//
//   model.embed_tokens.weight [V, width]   its first rows, or all of them
//   lm_head.weight            [V, width]   with zeros behind
//   lm_head.bias              [V]
#pragma once

#include <cstdint>
#include <string>

#include "ckpt/catalog.h"

namespace ckpt::library {

// What was done, and a warning; "" if there is none.
struct NewVocabulary {
  std::string note, warning;
};

// Cuts or pads the embeddings, the heads and their optimizer state;
// config.json's vocab_size follows. No byte moves. Throws unfaithful_error if
// config.json disagrees with the rows, and for a tensor of unknown name with a
// dimension of that size.
NewVocabulary set_vocabulary(Catalog& catalog, uint64_t rows);

}  // namespace ckpt::library
