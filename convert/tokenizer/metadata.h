// SPDX-License-Identifier: Apache-2.0
// GGUF's metadata about a tokenizer, checked.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "convert/tokenizer/sentencepiece.h"
#include "models/numbers.h"

namespace ckpt::families {

inline constexpr const char* kMetaspace = "\xE2\x96\x81";  // "▁"

std::string json_text(const std::string& text);

using Merges = std::vector<std::pair<std::string, std::string>>;

struct GgufMetadata {
  const Json& all;
  const std::string& source;
  std::vector<std::string> tokens;
  std::vector<TokenType> types;
  std::map<std::string, uint64_t> ids;  // "bos" -> 1

  GgufMetadata(const Json& metadata, const std::string& path)
      : all(metadata), source(path) {}

  // Throw input_error for values of another kind; names are without
  // "tokenizer.ggml.", keys with it.
  const Json* find(const std::string& key) const;
  std::string text_of(const std::string& key) const;
  std::optional<bool> flag(const std::string& name) const;
  std::optional<uint64_t> id(const std::string& name) const;
  Error damaged(const std::string& key, const char* what) const;

  // Fills tokens, types and ids.
  void read_tokens();
  bool is(uint64_t token, TokenType type) const { return types[token] == type; }
  bool any(TokenType type) const { return std::ranges::count(types, type) > 0; }
  // What fills up a vocabulary to the rows of an embedding.
  bool left_out(uint64_t token) const;

  // {"token": id, …} without those.
  std::string vocab_text() const;
  std::vector<double> all_scores() const;
  Merges listed_merges() const;
  // llama.cpp joins the two tokens that make the one with the highest score:
  // every way to make a token is a merge, in the order of the scores.
  Merges scored_merges() const;

 private:
  void read_types();
};

}  // namespace ckpt::families
