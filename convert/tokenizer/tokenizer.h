// SPDX-License-Identifier: Apache-2.0
// A tokenizer between Hugging Face's files and GGUF's metadata.
//
//   tokenizer.ggml.model   llama.cpp's name of      tokenizer.json's model
//   gpt2                   BPE over bytes           BPE, ByteLevel
//   llama                  SentencePiece's BPE      BPE, "▁" and byte_fallback
//   gemma4                 the same, by merges      BPE, "▁" and byte_fallback
//   t5                     SentencePiece's Unigram  Unigram
//   bert                   WordPiece                WordPiece
//
// Both ways what is written encodes a text to the same tokens, as far as the
// other side can say it; what it can't say is refused, or a sentence in `notes`
// where only unusual text is concerned.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "convert/tokenizer/gguf_keys.h"

namespace ckpt::families {

// Names to texts: tokenizer.json, tokenizer_config.json, tokenizer.model …
using TokenizerFiles = std::map<std::string, std::string>;

// The keys that llama.cpp's converter writes, in its order. `architecture` is
// GGUF's ("llama", "gemma3"); `vocab_size`: rows of the embedding, which unused
// tokens fill up; 0: as many as there are tokens. Throws unfaithful_error that
// says what is not known, input_error for a damaged file.
GgufKeys gguf_of_tokenizer(const TokenizerFiles& files, uint64_t vocab_size,
                           const std::string& architecture,
                           std::vector<std::string>& notes);

// tokenizer.json, tokenizer_config.json, generation_config.json, and the chat
// templates. `metadata`: an object of all keys; `source`: its file, for
// messages. Empty if there is no tokenizer.
TokenizerFiles tokenizer_of_gguf(const Json& metadata,
                                 const std::string& source);

}  // namespace ckpt::families
