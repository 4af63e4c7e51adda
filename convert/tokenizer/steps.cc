// SPDX-License-Identifier: Apache-2.0
#include "convert/tokenizer/steps.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "ckpt/error.h"
#include "convert/tokenizer/pre.h"
#include "lib/net/hmac.h"
#include "lib/text/format.h"
#include "lib/text/json.h"

namespace ckpt::families {
namespace {

constexpr const char* kTokenizerJson = "tokenizer.json";

}  // namespace

bool class_has(const Json& config, std::string_view part) {
  return config.is_object() &&
         config.value("tokenizer_class", "").find(part) != std::string::npos;
}

Json doc_of(const TokenizerFiles& files, const std::string& name) {
  const auto found = files.find(name);
  if (found == files.end()) return nullptr;
  Json doc = text::parse_python_json(found->second, name);
  if (!doc.is_object()) throw input_error({name, {}}, "expected an object");
  return doc;
}

bool has_step(const Json& step, std::string_view type) {
  if (!step.is_object()) return false;
  if (step.value("type", "") == type) return true;
  for (const char* list : {"normalizers", "pretokenizers", "decoders"})
    if (const auto steps = step.find(list); steps != step.end())
      for (const Json& one : *steps)
        if (has_step(one, type)) return true;
  return false;
}

const Json& part(const Json& tokenizer, const char* name) {
  static const Json none;
  const auto found = tokenizer.find(name);
  return found == tokenizer.end() ? none : *found;
}

bool puts_space(const Json& tokenizer) {
  if (has_step(part(tokenizer, "normalizer"), "Prepend")) return true;
  const Json& pre = part(tokenizer, "pre_tokenizer");
  Json steps = Json::array({pre});
  if (pre.is_object() && pre.contains("pretokenizers"))
    steps = pre["pretokenizers"];
  for (const Json& step : steps)
    if (step.is_object() && step.value("type", "") == "Metaspace")
      return step.contains("prepend_scheme")
                 ? step["prepend_scheme"] != "never"
                 : step.value("add_prefix_space", true);
  return false;
}

bool is_byte_token(const std::string& token) {
  return token.size() == 6 && token.starts_with("<0x") && token[5] == '>' &&
         std::isxdigit(static_cast<unsigned char>(token[3])) != 0 &&
         std::isxdigit(static_cast<unsigned char>(token[4])) != 0;
}

void charsmap_of(const Json& normalizer, std::string& charsmap) {
  if (normalizer.is_null()) return;
  const std::string type = normalizer.value("type", "");
  if (type == "Sequence") {
    for (const Json& one : normalizer.value("normalizers", Json::array()))
      charsmap_of(one, charsmap);
    return;
  }
  if (type == "Strip" || type == "Prepend" || type == "Replace") return;
  if (type != "Precompiled")
    throw unfaithful_error({kTokenizerJson, {}},
                           "normalizer {}: llama.cpp's Unigram has a "
                           "precompiled map of characters alone",
                           text::printable(type))
        .with_hint(kTokenizerHint);
  const std::optional<std::string> bytes =
      net::from_base64(normalizer.value("precompiled_charsmap", ""));
  if (!bytes)
    throw input_error({kTokenizerJson, {}},
                      "precompiled_charsmap is not base 64");
  charsmap = *bytes;
}

GgufVocabulary unigram_vocabulary(const TokenizerDocs& docs,
                                  const AddedTokens& added, uint64_t size) {
  GgufVocabulary made = vocabulary_of(docs.tokenizer, added, size);
  const Json& model = docs.tokenizer.at("model");
  const Json unk = model.value("unk_id", Json());
  const Json& vocab = model.at("vocab");
  for (uint64_t id = 0; id < vocab.size(); ++id) {
    made.scores[id] = vocab[id].at(1).get<float>();
    if (is_byte_token(made.tokens[id]) && model.value("byte_fallback", false))
      made.types[id] = TokenType::kByte;
    if (unk == Json(id)) made.types[id] = TokenType::kUnknown;
    // The list has no holes: what fills it up.
    if (is_padding(made.tokens[id]) && made.scores[id] <= -1000)
      made.types[id] = TokenType::kUnused;
  }
  return made;
}

Json slow_tokenizer(const TokenizerFiles& files, const Json& config) {
  Json made;
  if (files.contains("vocab.json") && files.contains("merges.txt")) {
    const GgufPre* pre =
        class_has(config, "GPT2Tokenizer")    ? gguf_pre_named("gpt-2")
        : class_has(config, "Qwen2Tokenizer") ? gguf_pre_named("qwen2")
                                              : nullptr;
    if (pre == nullptr)
      throw unfaithful_error({"tokenizer_config.json", {}},
                             "tokenizer_class: how it cuts text into words is "
                             "not known without tokenizer.json")
          .with_hint(kTokenizerHint);
    Json merges = Json::array();
    std::string_view rest = files.at("merges.txt");
    while (!rest.empty()) {
      const std::string_view line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(rest.size(), line.size() + 1));
      if (!line.empty() && !line.starts_with("#version"))
        merges.push_back(line.substr(0, line.find('\r')));
    }
    made["model"] = {{"type", "BPE"},
                     {"vocab", doc_of(files, "vocab.json")},
                     {"merges", std::move(merges)}};
    made["pre_tokenizer"] = pre_tokenizer_of(*pre);
    return made;
  }
  const auto words = files.find("vocab.txt");
  if (words == files.end()) {
    // Tokenizers all the same: nothing is not what comes of them.
    for (const auto& [name, text] : files)
      if (name == "tekken.json" || name == "tokenizer.jsonl" ||
          name.ends_with("tiktoken.model") || name.ends_with(".tiktoken") ||
          name == "vocab.json" || name.starts_with("rwkv_vocab"))
        throw unfaithful_error({name, {}}, "a tokenizer without tokenizer.json")
            .with_hint(kTokenizerHint);
    return nullptr;
  }
  Json vocab = Json::object();
  std::string_view rest = words->second;
  while (!rest.empty()) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const size_t id = vocab.size();
    if (!vocab.emplace(line, id).second)
      throw input_error(
          {"vocab.txt", {}}, "two lines are {}",
          text::printable(line.empty() ? "empty" : std::string(line)));
  }
  made["model"] = {{"type", "WordPiece"}, {"vocab", std::move(vocab)}};
  made["normalizer"] = {
      {"type", "BertNormalizer"},
      {"lowercase",
       config.is_object() ? config.value("do_lower_case", true) : true}};
  return made;
}

}  // namespace ckpt::families
