// SPDX-License-Identifier: Apache-2.0
// The tokens of a tokenizer by their ids, as GGUF lists them.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "convert/tokenizer/sentencepiece.h"
#include "convert/tokenizer/special.h"

namespace ckpt::families {

// "[PAD7]": what fills up a vocabulary to the rows of an embedding. Older
// converters counted from 1.
bool is_padding(std::string_view token);

struct GgufVocabulary {
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<TokenType> types;

  // Unused tokens with names of their own.
  explicit GgufVocabulary(uint64_t size, float score);
  void put(uint64_t id, std::string token, float score, TokenType type);
};

struct AddedToken {
  std::string content;
  bool special = false;
};
using AddedTokens = std::map<uint64_t, AddedToken>;

// Those of added_tokens.json, tokenizer_config.json and tokenizer.json: what
// transformers would add. Tokens that have a name (bos_token …) are special.
AddedTokens added_tokens(const TokenizerFiles& files,
                         const TokenizerDocs& docs);

// Texts to ids: of BPE and WordPiece; of Unigram the places in the list.
std::vector<std::pair<std::string, uint64_t>> model_vocab(const Json& tokenizer,
                                                          const char* file);

// Of tokenizer.json: all but SentencePiece's. `size` 0: as many as there are.
// Throws unfaithful_error for ids that the embedding has no rows for.
GgufVocabulary vocabulary_of(const Json& tokenizer, const AddedTokens& added,
                             uint64_t size);

// Of tokenizer.model, with what was added to it. `all_added`: the types of all
// tokens of tokenizer.json are taken, as the converter does for Phi-3.
GgufVocabulary vocabulary_of(const SentencePieceModel& model,
                             const TokenizerFiles& files,
                             const TokenizerDocs& docs, uint64_t size,
                             bool all_added, std::vector<std::string>& notes);

// Pairs of BPE in the order of their ranks.
std::vector<std::pair<std::string, std::string>> merges_of(
    const Json& tokenizer);

// Gives each token the score at which llama.cpp, which joins what has the
// highest score, joins in the order of the merges. Throws unfaithful_error
// where it would join otherwise.
void score_by_merges(GgufVocabulary& vocabulary, const Json& tokenizer);

// A token that the merges don't make out of its letters; "" if there is none.
std::string unmade_token(const Json& tokenizer, const AddedTokens& added);

}  // namespace ckpt::families
