// SPDX-License-Identifier: Apache-2.0
// Padding of the vocabulary: Megatron stores word embeddings and output
// layers with rows that nobody uses, so that the ranks divide them.
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

// make_vocab_size_divisible_by by default.
inline constexpr uint64_t kUsualVocabMultiple = 128;

// True for word embeddings and output layers, and their optimizer state.
bool has_vocabulary(std::string_view key);

// Rows for that many tensor-parallel ranks: as they are if the ranks divide
// them, else the next multiple of what the args say (128 if they don't).
uint64_t padded_rows(uint64_t rows, const Facts& facts, uint64_t tp);

// Appends zero rows to tensors with a vocabulary, where the ranks don't divide
// them. Real rows are never cut. Says so in the assumptions.
void pad_vocabulary(Catalog& catalog, const Facts& facts, uint64_t tp);

// Cuts rows, or appends rows of zeros. Throws unfaithful_error.
void set_rows(Catalog& catalog, Tensor& tensor, uint64_t rows);

// What the command line asks for: of `wanted.vocab_size` rows in use (else
// what the args say; else all of them) as many as Megatron stores for tp
// ranks. An `unpadded` source is padded without being asked. False if there is
// nothing to do, so that rows follow from the source's alone.
bool ask_vocabulary(Catalog& catalog, const Facts& facts, const Layout& layout,
                    bool unpadded);

// Rows of the word embeddings, or of the output layer; 0 if there is neither.
uint64_t vocabulary_rows(const Catalog& catalog);

}  // namespace ckpt::megatron
