// SPDX-License-Identifier: Apache-2.0
// tokenizer.json's steps, and older files as tokenizer.json would have them.
#pragma once

#include <string>
#include <string_view>

#include "convert/tokenizer/vocabulary.h"

namespace ckpt::families {

inline constexpr const char* kTokenizerHint =
    "take the tokenizer of a GGUF file of the same base: --tokenizer-from "
    "BASE.gguf, or of a folder that has one: --tokenizer-from DIR";

// A JSON file; null if there is none.
Json doc_of(const TokenizerFiles& files, const std::string& name);

// Whether tokenizer_config.json's tokenizer_class has `part` in its name.
bool class_has(const Json& config, std::string_view part);

// A part of tokenizer.json; null if it is absent.
const Json& part(const Json& tokenizer, const char* name);

// Whether some step of a normalizer, pre_tokenizer or decoder is `type`.
bool has_step(const Json& step, std::string_view type);

// Whether a space is put before a text.
bool puts_space(const Json& tokenizer);

// The map of characters that a normalizer has, if llama.cpp's Unigram has the
// other steps, too: spaces that become one.
void charsmap_of(const Json& normalizer, std::string& charsmap);

// "<0x0A>"
bool is_byte_token(const std::string& token);

// Of Unigram, with the scores and types that tokenizer.json has.
GgufVocabulary unigram_vocabulary(const TokenizerDocs& docs,
                                  const AddedTokens& added, uint64_t size);

// vocab.json and merges.txt, or vocab.txt; null if there are none.
Json slow_tokenizer(const TokenizerFiles& files, const Json& config);

}  // namespace ckpt::families
