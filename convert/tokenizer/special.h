// SPDX-License-Identifier: Apache-2.0
// The keys about special tokens and chat templates, by the rules of the gguf
// package's SpecialVocab: what llama.cpp's converter would write.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "convert/tokenizer/tokenizer.h"

namespace ckpt::families {

// What is read of a folder once; null where there is no such file.
struct TokenizerDocs {
  Json tokenizer;  // tokenizer.json
  Json config;     // tokenizer_config.json
  Json model;      // config.json
};

struct GgufSpecial {
  // In the order in which they are written.
  std::vector<std::pair<std::string, bool>> add;      // "bos" -> true
  std::vector<std::pair<std::string, uint64_t>> ids;  // "bos" -> 1
  GgufKeys chat;
  GgufKeys normalizer;

  void set_id(const std::string& type, const Json& id,
              std::optional<uint64_t> below);
  std::optional<bool> adds(const std::string& type) const;
};

// `below`: ids from there on are left out.
GgufSpecial gguf_special(const TokenizerFiles& files, const TokenizerDocs& docs,
                         std::optional<uint64_t> below);

// Says whether a token comes before and after a text where llama.cpp, without a
// key, does otherwise (`bos`, `eos`) than the files say. Throws
// unfaithful_error for one that has no id.
void settle_ends(GgufSpecial& special, const TokenizerDocs& docs, bool bos,
                 bool eos, std::vector<std::string>& notes);

// All keys of it but for merges, which come first.
void append_keys(GgufKeys& keys, const GgufSpecial& special);

}  // namespace ckpt::families
