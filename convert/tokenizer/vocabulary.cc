// SPDX-License-Identifier: Apache-2.0
#include "convert/tokenizer/vocabulary.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "ckpt/error.h"
#include "lib/text/format.h"
#include "lib/text/json.h"
#include "lib/text/number.h"
#include "lib/text/utf8.h"

namespace ckpt::families {
namespace {

// No vocabulary comes near; what a file says decides how much is allocated.
constexpr uint64_t kMostTokens = uint64_t{1} << 24;
constexpr float kAddedScore = -1000, kUnusedScore = -10000;
constexpr std::string_view kSpace = "\xE2\x96\x81";  // SentencePiece's space

bool looks_special(std::string_view token) {
  const auto between = [&](std::string_view begin, std::string_view end) {
    return token.starts_with(begin) && token.ends_with(end);
  };
  // Models mark these as if they were text; the converter knows better.
  return token == "<pad>" || token == "<mask>" || token == "<2mass>" ||
         token == "[@BOS@]" || between("<|", "|>") ||
         between("<\xEF\xBD\x9C", "\xEF\xBD\x9C>") || between("<unused", ">");
}

std::string with_spaces(std::string token) {
  for (size_t at = 0; (at = token.find(kSpace, at)) != token.npos;)
    token.replace(at++, kSpace.size(), " ");
  return token;
}

uint64_t token_id(const Json& id, const std::string& file) {
  if (!id.is_number_unsigned() || id.get<uint64_t>() >= kMostTokens)
    throw input_error({file, {}}, "a token's id is not a number below {}",
                      kMostTokens);
  return id.get<uint64_t>();
}

// {"0": {"content": …}} of tokenizer_config.json.
template <class Take>
void each_in_config(const Json& config, const Take& take) {
  if (!config.is_object()) return;
  const Json decoder = config.value("added_tokens_decoder", Json::object());
  for (const auto& [key, token] : decoder.items()) {
    if (key.empty() || key.size() > 9 ||
        !std::ranges::all_of(key, text::is_digit))
      throw input_error({"tokenizer_config.json", {}},
                        "added_tokens_decoder: {} is not an id",
                        text::printable(key));
    const std::string& content =
        token.at("content").template get_ref<const std::string&>();
    take(token_id(Json(std::stoull(key)), "tokenizer_config.json"), content,
         token.value("special", false));
  }
}

template <class Take>
void each_in_tokenizer(const Json& tokenizer, const Take& take) {
  if (!tokenizer.is_object()) return;
  const Json list = tokenizer.value("added_tokens", Json::array());
  for (const Json& token : list) {
    const std::string& content =
        token.at("content").template get_ref<const std::string&>();
    take(token_id(token.at("id"), "tokenizer.json"), content,
         token.value("special", false));
  }
}

template <class Take>
void each_in_file(const TokenizerFiles& files, const Take& take) {
  const auto found = files.find("added_tokens.json");
  if (found == files.end()) return;
  const Json list = text::parse_python_json(found->second, found->first);
  for (const auto& [content, id] : list.items())
    take(token_id(id, found->first), content);
}

std::set<std::string> named_tokens(const Json& config) {
  std::set<std::string> named;
  const auto take = [&](const Json& token) {
    if (token.is_string()) named.insert(token.get<std::string>());
    if (token.is_object() && token.value("content", Json()).is_string())
      named.insert(token["content"].get<std::string>());
  };
  if (!config.is_object()) return named;
  for (const char* type : {"bos", "eos", "unk", "sep", "pad", "cls", "mask"})
    take(config.value(std::string(type) + "_token", Json()));
  for (const char* more : {"additional_special_tokens", "extra_special_tokens"})
    for (const Json& token : config.value(more, Json::array())) take(token);
  return named;
}

void check_rows(uint64_t id, const std::string& token, uint64_t size) {
  if (size == 0 || id < size) return;
  throw unfaithful_error({"tokenizer.json", {}},
                         "token {} ({}) has no row in an embedding of {} rows",
                         id, text::printable(token), size)
      .with_hint(
          "take the tokenizer of this model's own base: "
          "--tokenizer-from DIR");
}

std::vector<std::string> letters_of(std::string_view token) {
  std::vector<std::string> letters;
  while (!token.empty()) {
    const size_t length = std::max<size_t>(1, text::first_char(token).length);
    letters.emplace_back(token.substr(0, length));
    token.remove_prefix(length);
  }
  return letters;
}

// The key of a pair: NUL is in no text that BPE sees as a letter of its own
// beside another, so pairs stay apart.
std::string pair_key(const std::string& left, const std::string& right) {
  return left + '\0' + right;
}

using Ranks = std::unordered_map<std::string, uint64_t>;

Ranks ranks_of(const Json& tokenizer) {
  Ranks ranks;
  uint64_t rank = 0;
  for (const auto& [left, right] : merges_of(tokenizer))
    ranks.emplace(pair_key(left, right), rank++);
  return ranks;
}

// Whether BPE makes one symbol of the letters.
bool makes(std::vector<std::string> symbols, const Ranks& ranks) {
  while (symbols.size() > 1) {
    uint64_t best = std::numeric_limits<uint64_t>::max();
    size_t where = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = ranks.find(pair_key(symbols[i], symbols[i + 1]));
      if (found == ranks.end() || found->second >= best) continue;
      best = found->second;
      where = i;
    }
    if (best == std::numeric_limits<uint64_t>::max()) return false;
    symbols[where] += symbols[where + 1];
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(where) + 1);
  }
  return true;
}

Error no_score(const std::string& token, const char* why) {
  return unfaithful_error({"tokenizer.json", {}},
                          "{}: {}, which scores can't say: llama.cpp joins "
                          "what has the highest score",
                          text::printable(token), why)
      .with_hint(
          "give SentencePiece's tokenizer.model, or --tokenizer-from "
          "BASE.gguf");
}

// Tokens whose merges lie among each other's had one score: transformers sorts
// what was tied by the letters of both halves, the longest first. Merges of a
// tokenizer that never had scores don't lie so.
std::unordered_map<std::string, float> scores_of(
    const std::vector<std::pair<std::string, std::string>>& merges) {
  std::unordered_map<std::string, uint64_t> last;
  for (uint64_t rank = 0; rank < merges.size(); ++rank)
    last[merges[rank].first + merges[rank].second] = rank;
  std::unordered_map<std::string, float> scores;
  uint64_t begin = 0, end = 0, tokens = 0;
  bool tied = true;
  std::pair<size_t, size_t> before;
  for (uint64_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    const std::pair letters(letters_of(left).size(), letters_of(right).size());
    const std::string token = left + right;
    if (rank == 0 || rank > end) {
      begin = rank;
      end = last[token];
      tokens = 0;
      tied = true;
    } else {
      tied = tied && letters <= before;
      end = std::max(end, last[token]);
    }
    tokens += scores.try_emplace(token, -static_cast<float>(begin)).second;
    if (tokens > 1 && !tied)
      throw no_score(token, "its merges have other ones between them");
    before = letters;
  }
  return scores;
}

}  // namespace

bool is_padding(std::string_view token) {
  return token.size() > 5 && token.starts_with("[PAD") && token.back() == ']' &&
         std::ranges::all_of(token.substr(4, token.size() - 5), text::is_digit);
}

GgufVocabulary::GgufVocabulary(uint64_t size, float score) {
  if (size > kMostTokens)
    throw input_error({}, "a vocabulary of {} tokens", size);
  tokens.reserve(size);
  for (uint64_t id = 0; id < size; ++id)
    tokens.push_back("[PAD" + std::to_string(id) + "]");
  scores.assign(size, score);
  types.assign(size, TokenType::kUnused);
}

void GgufVocabulary::put(uint64_t id, std::string token, float score,
                         TokenType type) {
  tokens[id] = std::move(token);
  scores[id] = score;
  types[id] = type;
}

AddedTokens added_tokens(const TokenizerFiles& files,
                         const TokenizerDocs& docs) {
  AddedTokens all;
  if (!docs.tokenizer.is_object())
    each_in_file(files, [&](uint64_t id, const std::string& content) {
      all[id].content = content;
    });
  const auto take = [&](uint64_t id, const std::string& content, bool special) {
    all[id].content = content;
    all[id].special |= special;
  };
  each_in_config(docs.config, take);
  each_in_tokenizer(docs.tokenizer, take);
  const std::set<std::string> named = named_tokens(docs.config);
  for (auto& [id, token] : all) token.special |= named.contains(token.content);
  return all;
}

std::vector<std::pair<std::string, uint64_t>> model_vocab(const Json& tokenizer,
                                                          const char* file) {
  std::vector<std::pair<std::string, uint64_t>> vocab;
  const Json& listed = tokenizer.at("model").at("vocab");
  if (listed.is_array())
    for (const Json& entry : listed)
      vocab.emplace_back(entry.at(0).get<std::string>(), vocab.size());
  else if (!listed.is_object())
    throw input_error({file, {}}, "vocab is of another kind than expected");
  else
    for (const auto& [token, id] : listed.items())
      vocab.emplace_back(token, token_id(id, file));
  return vocab;
}

GgufVocabulary vocabulary_of(const Json& tokenizer, const AddedTokens& added,
                             uint64_t size) {
  const auto vocab = model_vocab(tokenizer, "tokenizer.json");
  uint64_t rows = size;
  for (const auto& [token, id] : vocab) {
    check_rows(id, token, size);
    rows = std::max(rows, id + 1);
  }
  for (const auto& [id, token] : added) {
    check_rows(id, token.content, size);
    rows = std::max(rows, id + 1);
  }
  GgufVocabulary made(rows, kUnusedScore);
  for (const auto& [token, id] : vocab) {
    if (made.types[id] != TokenType::kUnused)
      throw input_error({"tokenizer.json", {}}, "two tokens have the id {}",
                        id);
    made.put(id, token, 0, TokenType::kNormal);
  }
  for (const auto& [id, token] : added) {
    if (token.special || looks_special(token.content))
      made.put(id, token.content, kAddedScore, TokenType::kControl);
    else
      made.put(id, with_spaces(token.content), kAddedScore,
               TokenType::kUserDefined);
  }
  return made;
}

GgufVocabulary vocabulary_of(const SentencePieceModel& model,
                             const TokenizerFiles& files,
                             const TokenizerDocs& docs, uint64_t size,
                             bool all_added, std::vector<std::string>& notes) {
  uint64_t rows = size;
  if (size == 0) {
    rows = model.pieces.size();
    for (const auto& [id, token] : added_tokens(files, docs))
      rows = std::max(rows, id + 1);
  }
  GgufVocabulary made(rows, kUnusedScore);
  uint64_t past = model.pieces.size() - std::min(model.pieces.size(), rows);
  for (uint64_t id = 0; id < model.pieces.size() - past; ++id) {
    const SentencePiece& piece = model.pieces[id];
    const bool defined = piece.type == TokenType::kUserDefined;
    made.put(id, defined ? with_spaces(piece.text) : piece.text, piece.score,
             piece.type);
  }
  each_in_file(files, [&](uint64_t id, const std::string& content) {
    if (id >= rows) return void(++past);
    made.put(id, content, kAddedScore, TokenType::kUserDefined);
  });
  std::set<uint64_t> known;
  const auto put = [&](uint64_t id, const std::string& content, bool special) {
    if (special)
      made.put(id, content, kAddedScore, TokenType::kControl);
    else
      made.put(id, all_added ? content : with_spaces(content), kAddedScore,
               TokenType::kUserDefined);
  };
  each_in_config(
      docs.config, [&](uint64_t id, const std::string& content, bool special) {
        known.insert(id);
        if (id >= rows) return void(++past);
        put(id, content, special || (!all_added && looks_special(content)));
      });
  // transformers 5 writes them to tokenizer.json only. A piece that has its
  // type already keeps it.
  each_in_tokenizer(docs.tokenizer, [&](uint64_t id, const std::string& content,
                                        bool special) {
    if (known.contains(id) && !all_added) return;
    if (id >= rows) return void(++past);
    const bool same = made.tokens[id] == content &&
                      made.types[id] != TokenType::kNormal &&
                      made.types[id] != TokenType::kUnused;
    if (!same || all_added)
      put(id, content, special || (!all_added && looks_special(content)));
  });
  if (past > 0)
    notes.push_back(text::counted(past, "token") +
                    " of the tokenizer past the embedding's last row");
  return made;
}

std::vector<std::pair<std::string, std::string>> merges_of(
    const Json& tokenizer) {
  std::vector<std::pair<std::string, std::string>> merges;
  const Json& listed = tokenizer.at("model").at("merges");
  merges.reserve(listed.size());
  for (const Json& merge : listed) {
    if (merge.is_array() && merge.size() == 2) {
      merges.emplace_back(merge[0].get<std::string>(),
                          merge[1].get<std::string>());
      continue;
    }
    const auto both = merge.get<std::string>();
    const size_t space = both.find(' ', 1);
    if (space == both.npos || space + 1 == both.size())
      throw input_error({"tokenizer.json", {}}, "merges: {} is not a pair",
                        text::printable(both));
    merges.emplace_back(both.substr(0, space), both.substr(space + 1));
  }
  return merges;
}

void score_by_merges(GgufVocabulary& vocabulary, const Json& tokenizer) {
  const auto merges = merges_of(tokenizer);
  const std::unordered_map<std::string, float> scores = scores_of(merges);
  std::unordered_map<std::string, uint64_t> ways;
  for (const auto& [left, right] : merges) ++ways[left + right];
  std::unordered_set<std::string> known;
  for (const auto& [token, id] : model_vocab(tokenizer, "tokenizer.json"))
    known.insert(token);
  for (uint64_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.types[id] != TokenType::kNormal) continue;
    const std::string& token = vocabulary.tokens[id];
    uint64_t splits = 0;
    for (size_t at = text::first_char(token).length; at < token.size();
         at += std::max<size_t>(
             1, text::first_char(std::string_view(token).substr(at)).length))
      splits += known.contains(token.substr(0, at)) &&
                known.contains(token.substr(at));
    const auto found = ways.find(token);
    if ((found == ways.end() ? 0 : found->second) != splits)
      throw no_score(token, "not all pairs of tokens that it consists of join");
    vocabulary.scores[id] = splits == 0 ? kAddedScore : scores.at(token);
  }
}

std::string unmade_token(const Json& tokenizer, const AddedTokens& added) {
  const Ranks ranks = ranks_of(tokenizer);
  for (const auto& [token, id] : model_vocab(tokenizer, "tokenizer.json"))
    if (!added.contains(id) && !makes(letters_of(token), ranks)) return token;
  return {};
}

}  // namespace ckpt::families
