// SPDX-License-Identifier: Apache-2.0
// --tie and --untie: whether the output layer is the input embedding, under
// transformers' names.
//
//   model.embed_tokens.weight [V, width]    both of them, and config.json's
//   lm_head.weight            [V, width]    tie_word_embeddings
#pragma once

#include <string>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::library {

// Output layers and input embeddings of language models, by the names that
// transformers and Megatron give them.
std::vector<const Tensor*> heads_of(const Catalog& catalog);
std::vector<const Tensor*> embeddings_of(const Catalog& catalog);

// Makes config.json say `tied`, and the tensors follow: a head that is stored
// is left out and has to equal the embedding, which is proven before anything
// is written; a head that is not becomes a copy of the embedding. No byte
// moves. Returns what was done. Throws unfaithful_error where there is no
// config.json or not one embedding, and for the optimizer state of either: a
// tied embedding's belongs to both.
std::string set_tied(Catalog& catalog, bool tied);

}  // namespace ckpt::library
