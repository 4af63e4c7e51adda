// SPDX-License-Identifier: Apache-2.0
// Padding of the vocabulary: Megatron stores word embeddings and output layers
// with unused rows, so that they divide evenly among the ranks.
//
//   | true rows | padding |     padded_vocab_size rows, a multiple of
//                               make_vocab_size_divisible_by * tp
#pragma once

#include <cstdint>
#include <string_view>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"
#include "formats/megatron/model/facts.h"

namespace ckpt::megatron {

// The default of make_vocab_size_divisible_by.
inline constexpr uint64_t kUsualVocabMultiple = 128;

// True for word embeddings and output layers, and their optimizer state.
bool has_vocabulary(std::string_view key);

// Rows for that many tensor-parallel ranks: unchanged if the ranks divide them,
// else the next multiple of tp times what the args say (128 if they don't).
uint64_t padded_rows(uint64_t rows, const Facts& facts, uint64_t tp);

// Appends rows of zeros to tensors with a vocabulary, if the ranks don't divide
// it. Never cuts real rows. Notes the padding in the assumptions.
void pad_vocabulary(Catalog& catalog, const Facts& facts, uint64_t tp);

// Cuts rows, or appends rows of zeros. Throws unfaithful_error.
void set_rows(Catalog& catalog, Tensor& tensor, uint64_t rows);

// Does what the command line asks for: stores `wanted.vocab_size` rows in use
// (else what the args say; else all of them), padded as Megatron does for tp
// ranks. An `unpadded` source is padded unasked. Returns false if there is
// nothing to do, so that rows follow from the source's alone.
bool ask_vocabulary(Catalog& catalog, const Facts& facts, const Layout& layout,
                    bool unpadded);

// Rows of the word embeddings, else of the output layer; 0 without either.
uint64_t vocabulary_rows(const Catalog& catalog);

}  // namespace ckpt::megatron
