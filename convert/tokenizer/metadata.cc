// SPDX-License-Identifier: Apache-2.0
#include "convert/tokenizer/metadata.h"

#include <cmath>
#include <set>
#include <string_view>
#include <unordered_map>

#include "convert/tokenizer/vocabulary.h"
#include "lib/text/utf8.h"

namespace ckpt::families {
namespace {

const std::string kGgmlPrefix = "tokenizer.ggml.";

}  // namespace

std::string json_text(const std::string& text) { return Json(text).dump(); }

const Json* GgufMetadata::find(const std::string& key) const {
  const auto found = all.find(key);
  return found == all.end() ? nullptr : &*found;
}

Error GgufMetadata::damaged(const std::string& key, const char* what) const {
  return input_error({source, key}, "{}", what);
}

std::string GgufMetadata::text_of(const std::string& key) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_string()) throw damaged(key, "expected a string");
  const auto& text = value->get_ref<const std::string&>();
  if (!text::is_utf8(text)) throw damaged(key, "not UTF-8");
  return text;
}

std::optional<bool> GgufMetadata::flag(const std::string& name) const {
  const Json* value = find(kGgmlPrefix + name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean())
    throw damaged(kGgmlPrefix + name, "expected a boolean");
  return value->get<bool>();
}

std::optional<uint64_t> GgufMetadata::id(const std::string& name) const {
  const auto found = ids.find(name);
  return found == ids.end() ? std::nullopt : std::optional(found->second);
}

void GgufMetadata::read_tokens() {
  const Json* list = find(kGgmlPrefix + "tokens");
  if (list == nullptr || !list->is_array() || list->empty())
    throw damaged(kGgmlPrefix + "tokens", "expected a list of strings");
  std::set<std::string_view> seen;
  for (const Json& token : *list) {
    if (!token.is_string() ||
        !text::is_utf8(token.get_ref<const std::string&>()))
      throw damaged(kGgmlPrefix + "tokens", "a token that is not UTF-8");
    tokens.push_back(token.get<std::string>());
    if (!seen.insert(token.get_ref<const std::string&>()).second)
      throw damaged(kGgmlPrefix + "tokens", "two tokens are the same");
  }
  read_types();
  for (const char* name : {"bos", "eos", "cls", "eot", "eom", "unknown",
                           "seperator", "padding", "mask"}) {
    const std::string key = kGgmlPrefix + name + "_token_id";
    const Json* value = find(key);
    if (value == nullptr) continue;
    if (!value->is_number_integer() || *value < 0 || *value >= tokens.size())
      throw damaged(key, "not the id of a token");
    ids.emplace(name, value->get<uint64_t>());
  }
}

void GgufMetadata::read_types() {
  const size_t count = tokens.size();
  types.assign(count, TokenType::kNormal);
  const Json* list = find(kGgmlPrefix + "token_type");
  if (list == nullptr) return;
  if (!list->is_array() || list->size() != count)
    throw damaged(kGgmlPrefix + "token_type",
                  "not as many as there are tokens");
  for (size_t at = 0; at < count; ++at) {
    const Json& type = (*list)[at];
    if (!type.is_number_integer() || type < 0 || type > 6)
      throw damaged(kGgmlPrefix + "token_type",
                    "a type that llama.cpp doesn't have");
    if (type != 0) types[at] = static_cast<TokenType>(type.get<int>());
  }
}

bool GgufMetadata::left_out(uint64_t token) const {
  std::string_view text = tokens[token];
  if (text.starts_with(kMetaspace)) text.remove_prefix(3);
  return is(token, TokenType::kUnused) && is_padding(text);
}

std::string GgufMetadata::vocab_text() const {
  std::string made = "{";
  for (uint64_t token = 0; token < tokens.size(); ++token) {
    if (left_out(token)) continue;
    if (made.size() > 1) made += ',';
    made += json_text(tokens[token]) + ':' + std::to_string(token);
  }
  return made + '}';
}

Merges GgufMetadata::listed_merges() const {
  const std::string key = kGgmlPrefix + "merges";
  const Json* list = find(key);
  if (list == nullptr) return {};  // every token is a character
  if (!list->is_array()) throw damaged(key, "expected a list of strings");
  const std::set<std::string_view> known(tokens.begin(), tokens.end());
  Merges merges;
  for (const Json& merge : *list) {
    if (!merge.is_string()) throw damaged(key, "expected a list of strings");
    const auto& both = merge.get_ref<const std::string&>();
    const size_t space = both.find(' ', 1);
    if (space == both.npos) throw damaged(key, "a merge without a space");
    merges.emplace_back(both.substr(0, space), both.substr(space + 1));
    const auto& [left, right] = merges.back();
    if (!known.contains(left) || !known.contains(right) ||
        !known.contains(left + right))
      throw damaged(key, "a merge of what is not in the vocabulary");
  }
  return merges;
}

std::vector<double> GgufMetadata::all_scores() const {
  const std::string key = kGgmlPrefix + "scores";
  const Json* list = find(key);
  if (list == nullptr || !list->is_array() || list->size() != tokens.size())
    throw damaged(key, "not as many as there are tokens");
  std::vector<double> scores;
  scores.reserve(list->size());
  for (const Json& score : *list) {
    if (!score.is_number() || !std::isfinite(score.get<double>()))
      throw damaged(key, "expected numbers");
    scores.push_back(score.get<double>());
  }
  return scores;
}

Merges GgufMetadata::scored_merges() const {
  const std::vector<double> scores = all_scores();
  std::unordered_map<std::string_view, uint64_t> known;
  for (uint64_t token = 0; token < tokens.size(); ++token)
    if (is(token, TokenType::kNormal)) known.emplace(tokens[token], token);
  struct Merge {
    double score;
    uint64_t left, right;
    std::pair<ptrdiff_t, ptrdiff_t> letters;
  };
  std::vector<Merge> ways;
  const auto letters = [](std::string_view text) {
    return std::ranges::count_if(text,
                                 [](char c) { return (c & 0xC0) != 0x80; });
  };
  for (uint64_t token = 0; token < tokens.size(); ++token) {
    if (!is(token, TokenType::kNormal)) continue;
    const std::string_view whole = tokens[token];
    for (size_t at = text::first_char(whole).length; at < whole.size();
         at += text::first_char(whole.substr(at)).length) {
      const auto left = known.find(whole.substr(0, at));
      const auto right = known.find(whole.substr(at));
      if (left == known.end() || right == known.end()) continue;
      Merge merge;
      merge.score = scores[token];
      merge.left = left->second;
      merge.right = right->second;
      merge.letters = {letters(left->first), letters(right->first)};
      ways.push_back(merge);
    }
  }
  // Among equals transformers has the longest parts first.
  std::ranges::stable_sort(ways, [](const Merge& a, const Merge& b) {
    return std::pair(a.score, a.letters) > std::pair(b.score, b.letters);
  });
  Merges merges;
  merges.reserve(ways.size());
  for (const Merge& merge : ways)
    merges.emplace_back(tokens[merge.left], tokens[merge.right]);
  return merges;
}

}  // namespace ckpt::families
