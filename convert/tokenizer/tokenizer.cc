// SPDX-License-Identifier: Apache-2.0
#include "convert/tokenizer/tokenizer.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "ckpt/error.h"
#include "convert/tokenizer/pre.h"
#include "convert/tokenizer/special.h"
#include "convert/tokenizer/steps.h"
#include "convert/tokenizer/vocabulary.h"
#include "lib/text/format.h"

namespace ckpt::families {
namespace {

constexpr const char* kFile = "tokenizer.json";

enum class Kind { kBytes, kPieces, kUnigram, kWords };

Kind kind_of(const Json& tokenizer) {
  const std::string type = tokenizer.at("model").value("type", "");
  if (type == "WordPiece") return Kind::kWords;
  if (type == "Unigram") return Kind::kUnigram;
  if (type == "BPE") {
    for (const char* mark : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const Json& affix = part(tokenizer["model"], mark);
          affix.is_string() && affix != "")
        throw unfaithful_error({kFile, {}}, "model: {} {}: llama.cpp has none",
                               mark, text::printable(affix.get<std::string>()))
            .with_hint(kTokenizerHint);
    if (has_step(part(tokenizer, "pre_tokenizer"), "ByteLevel") ||
        has_step(part(tokenizer, "decoder"), "ByteLevel"))
      return Kind::kBytes;
    if (tokenizer["model"].value("byte_fallback", false)) return Kind::kPieces;
  }
  throw unfaithful_error({kFile, {}},
                         "model {}: neither BPE over bytes or with "
                         "byte_fallback, nor Unigram or WordPiece: not known "
                         "to llama.cpp",
                         text::printable(type))
      .with_hint(kTokenizerHint);
}

// One conversion: what is read, and the keys so far.
class Writing {
 public:
  Writing(const TokenizerFiles& files, uint64_t size, std::string architecture,
          std::vector<std::string>& notes)
      : files_(files),
        size_(size),
        architecture_(std::move(architecture)),
        notes_(notes) {
    docs_.tokenizer = doc_of(files, kFile);
    docs_.config = doc_of(files, "tokenizer_config.json");
    docs_.model = doc_of(files, "config.json");
  }

  GgufKeys keys();

 private:
  std::optional<SentencePieceModel> pieces() const;
  void put(const char* key, const char* type, Json value) {
    keys_.push_back(
        GgufKey{std::string("tokenizer.ggml.") + key, type, std::move(value)});
  }
  void put_prefix(bool adds) { put("add_space_prefix", "bool", adds); }
  void put_vocabulary(const char* model, const std::optional<std::string>& pre,
                      const GgufVocabulary& vocabulary, bool scores);
  void put_merges(const Json& tokenizer);
  void put_special(std::optional<uint64_t> below, bool bos, bool eos);
  void add_glm(GgufSpecial& special, std::optional<uint64_t> below);
  void put_type_count() {
    put("token_type_count", "u32",
        docs_.model.is_object() ? docs_.model.value("type_vocab_size", 1) : 1);
  }

  void note_spaces();
  void write_bytes(const Json& tokenizer);
  void write_gemma4();
  void write_pieces(const std::optional<SentencePieceModel>& model);
  void check_same(const SentencePieceModel& model);
  void write_unigram(const std::optional<SentencePieceModel>& model);
  void write_words(const Json& tokenizer);
  std::string pre_of(const Json& tokenizer);
  void check_normalizer(const Json& normalizer);
  std::optional<bool> prefix() const;
  bool named_class(std::string_view part) const {
    return class_has(docs_.config, part);
  }

  const TokenizerFiles& files_;
  uint64_t size_;
  std::string architecture_;
  std::vector<std::string>& notes_;
  TokenizerDocs docs_;
  bool pre_adds_bos_ = false;
  GgufKeys keys_;
};

std::optional<SentencePieceModel> Writing::pieces() const {
  for (const char* name :
       {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model"}) {
    const auto found = files_.find(name);
    if (found != files_.end()) return parse_sentencepiece(found->second, name);
  }
  return std::nullopt;
}

// GGUF has no place for it; llama.cpp knows a few by the model's name.
void Writing::note_spaces() {
  if (!docs_.tokenizer.is_object()) return;
  uint64_t count = 0;
  std::string first;
  for (const Json& token : docs_.tokenizer.value("added_tokens", Json::array()))
    if (token.value("lstrip", false) || token.value("rstrip", false) ||
        token.value("single_word", false))
      if (count++ == 0) first = token.value("content", "");
  if (count > 0)
    notes_.push_back(fmt::format(
        "GGUF can't say that {} ({} …) take the space beside them, or are "
        "whole words",
        text::counted(count, "added token"), text::printable(first)));
}

GgufKeys Writing::keys() {
  Json slow;
  if (docs_.tokenizer.is_null()) {
    if (const std::optional<SentencePieceModel> model = pieces()) {
      if (files_.contains("sentencepiece.bpe.model"))
        throw unfaithful_error({"sentencepiece.bpe.model", {}},
                               "the ids of its tokens are in tokenizer.json, "
                               "which is not there")
            .with_hint(kTokenizerHint);
      model->unigram ? write_unigram(model) : write_pieces(model);
      return std::move(keys_);
    }
    slow = slow_tokenizer(files_, docs_.config);
    if (slow.is_null()) return {};
  }
  const Json& tokenizer = slow.is_null() ? docs_.tokenizer : slow;
  note_spaces();
  switch (kind_of(tokenizer)) {
    case Kind::kBytes:
      write_bytes(tokenizer);
      break;
    case Kind::kPieces:
      if (architecture_ == "gemma4")
        write_gemma4();
      else
        write_pieces(pieces());
      break;
    case Kind::kUnigram:
      write_unigram(pieces());
      break;
    case Kind::kWords:
      write_words(tokenizer);
      break;
  }
  return std::move(keys_);
}

void Writing::put_vocabulary(const char* model,
                             const std::optional<std::string>& pre,
                             const GgufVocabulary& vocabulary, bool scores) {
  // llama.cpp looks tokens up by their text, and stops where two are the same.
  std::map<std::string_view, uint64_t> seen;
  for (uint64_t id = 0; id < vocabulary.tokens.size(); ++id)
    if (const auto [at, fresh] = seen.emplace(vocabulary.tokens[id], id);
        !fresh)
      throw unfaithful_error({kFile, {}},
                             "tokens {} and {} are both {}, and llama.cpp "
                             "loads no such vocabulary",
                             at->second, id,
                             text::printable(vocabulary.tokens[id]))
          .with_hint(kTokenizerHint);
  put("model", "str", model);
  if (pre) put("pre", "str", *pre);
  put("tokens", "arr:str", vocabulary.tokens);
  if (scores) put("scores", "arr:f32", vocabulary.scores);
  Json types = Json::array();
  for (const TokenType type : vocabulary.types)
    types.push_back(static_cast<int>(type));
  put("token_type", "arr:i32", std::move(types));
}

// A space within a token is a letter of GPT-2's for bytes.
void Writing::put_merges(const Json& tokenizer) {
  Json merges = Json::array();
  for (const auto& [left, right] : merges_of(tokenizer)) {
    std::string both;
    for (const std::string& half : {left, right}) {
      if (!both.empty()) both += ' ';
      for (const char c : half) c == ' ' ? both += "\xC4\xA0" : both += c;
    }
    merges.push_back(std::move(both));
  }
  if (!merges.empty()) put("merges", "arr:str", std::move(merges));
}

// `bos`, `eos`: what llama.cpp adds where no key says so.
void Writing::put_special(std::optional<uint64_t> below, bool bos, bool eos) {
  GgufSpecial special = gguf_special(files_, docs_, below);
  settle_ends(special, docs_, bos, eos, notes_);
  add_glm(special, below);
  append_keys(keys_, special);
}

// GLM's tokenizers name no such tokens; the converter has them in code.
void Writing::add_glm(GgufSpecial& special, std::optional<uint64_t> below) {
  using Row = std::pair<const char*, std::string_view>;
  constexpr std::string_view kText = "<|endoftext|>", kUser = "<|user|>";
  std::vector<Row> rows;
  if (architecture_ == "glm4")
    rows = {{"eos", kText}, {"eot", kUser}, {"unk", kText}, {"bos", kText}};
  else if (architecture_ == "chatglm")
    rows = {{"eos", kText}, {"eot", kUser}, {"unk", kText}};
  else if (architecture_.starts_with("glm"))
    rows = {{"bos", "[gMASK]"},
            {"eot", kUser},
            {"unk", kText},
            {"eom", "<|observation|>"}};
  else
    return;
  const AddedTokens added = added_tokens(files_, docs_);
  for (const auto& [type, token] : rows)
    for (const auto& [id, one] : added)
      if (one.content == token) special.set_id(type, id, below);
}

// What text becomes before it is cut: llama.cpp has nothing of the kind for
// BPE. NFC changes few texts, and the converter leaves it out of all Qwens.
void Writing::check_normalizer(const Json& normalizer) {
  if (normalizer.is_null()) return;
  const std::string type = normalizer.value("type", "");
  if (type == "NFC") {
    notes_.emplace_back(
        "llama.cpp does not normalize text to NFC, as the tokenizer does");
    return;
  }
  if (type == "Sequence") {
    for (const Json& one : normalizer.value("normalizers", Json::array()))
      check_normalizer(one);
    return;
  }
  throw unfaithful_error({kFile, {}}, "normalizer {}: llama.cpp's BPE has none",
                         text::printable(type))
      .with_hint(kTokenizerHint);
}

std::string Writing::pre_of(const Json& tokenizer) {
  check_normalizer(part(tokenizer, "normalizer"));
  PreHints hints = {architecture_};
  if (docs_.config.is_object())
    hints.push_back(docs_.config.value("tokenizer_class", ""));
  if (docs_.model.is_object())
    hints.push_back(docs_.model.value("model_type", ""));
  const bool roberta = part(tokenizer, "post_processor").is_object() &&
                       part(tokenizer, "post_processor").value("type", "") ==
                           "RobertaProcessing";
  const std::vector<PreName> names =
      gguf_pres_of(part(tokenizer, "pre_tokenizer"), roberta, hints);
  if (names.empty())
    throw unfaithful_error({kFile, {}},
                           "pre_tokenizer: it cuts text into words as no "
                           "tokenizer.ggml.pre that llama.cpp knows does")
        .with_hint(kTokenizerHint);
  if (part(tokenizer, "pre_tokenizer")
          .dump()
          .find("\"add_prefix_space\":true") != std::string::npos)
    notes_.push_back(
        "the tokenizer puts a space before each text, and llama.cpp's does "
        "not: a first word without one is another token");
  const bool ignores = tokenizer.at("model").value("ignore_merges", false);
  for (const PreName& one : names)
    if (one.pre->ignore_merges == ignores) {
      pre_adds_bos_ = one.pre->add_bos;
      return one.name;
    }
  // A word that is a token is that token, whatever merges make of it: of no
  // consequence where the merges make it.
  const std::string token =
      unmade_token(tokenizer, added_tokens(files_, docs_));
  if (!token.empty())
    notes_.push_back("llama.cpp " +
                     std::string(ignores ? "encodes" : "does not encode") +
                     " words by merges alone: the tokenizer's " +
                     text::printable(token) + " and its like differ");
  pre_adds_bos_ = names[0].pre->add_bos;
  return names[0].name;
}

void Writing::write_bytes(const Json& tokenizer) {
  // Without a meaning there, but written for what the converter takes for a
  // Llama.
  static const std::set<std::string> kLlamas = {"llama", "apertus", "arcee",
                                                "smollm3"};
  if (kLlamas.contains(architecture_) && prefix()) put_prefix(*prefix());
  const std::string pre = pre_of(tokenizer);
  const GgufVocabulary vocabulary =
      vocabulary_of(tokenizer, added_tokens(files_, docs_), size_);
  put_vocabulary("gpt2", pre, vocabulary, false);
  put_merges(tokenizer);
  put_special(std::nullopt, pre_adds_bos_, false);
  if (architecture_ == "bert") put_type_count();
}

// Whether a space is put before a text; nullopt where no file says so.
std::optional<bool> Writing::prefix() const {
  if (docs_.config.is_object()) {
    const Json said = docs_.config.value("add_prefix_space", Json());
    if (said.is_boolean()) return said.get<bool>();
  }
  return std::nullopt;
}

void Writing::write_gemma4() {
  GgufVocabulary vocabulary =
      vocabulary_of(docs_.tokenizer, added_tokens(files_, docs_), size_);
  // The converter writes no score of its own, and these as text, so that the
  // chat's parser sees them.
  static const std::set<std::string> kVisible = {
      "<|channel>",       "<channel|>",       "<|tool_call>", "<tool_call|>",
      "<|tool_response>", "<tool_response|>", "<|\"|>"};
  for (uint64_t id = 0; id < vocabulary.tokens.size(); ++id) {
    vocabulary.scores[id] = -1000;
    if (is_byte_token(vocabulary.tokens[id]))
      vocabulary.types[id] = TokenType::kByte;
    if (kVisible.contains(vocabulary.tokens[id]))
      vocabulary.types[id] = TokenType::kUserDefined;
  }
  put_vocabulary("gemma4", std::nullopt, vocabulary, true);
  put_merges(docs_.tokenizer);
  put_special(std::nullopt, true, false);
  put_prefix(false);
  for (GgufKey& key : keys_)
    if (key.key == "tokenizer.ggml.add_bos_token") {
      key.value = true;
      return;
    }
  put("add_bos_token", "bool", true);
}

// tokenizer.model is what llama.cpp needs, tokenizer.json what transformers
// loads: both have to be of one tokenizer. Added tokens may be new.
void Writing::check_same(const SentencePieceModel& model) {
  const AddedTokens added = added_tokens(files_, docs_);
  uint64_t others = 0;
  std::string first;
  for (const auto& [token, id] : model_vocab(docs_.tokenizer, kFile)) {
    if (id >= model.pieces.size() || added.contains(id) ||
        model.pieces[id].type != TokenType::kNormal ||
        model.pieces[id].text == token)
      continue;
    if (others++ == 0)
      first = fmt::format("token {} is {} in tokenizer.model, {} in {}", id,
                          text::printable(model.pieces[id].text),
                          text::printable(token), kFile);
  }
  if (others > model.pieces.size() / 100)
    throw unfaithful_error({kFile, {}},
                           "of another tokenizer than tokenizer.model: {}, "
                           "and {} more differ",
                           first, others - 1)
        .with_hint("leave the one out that is not this model's");
  if (others > 0) notes_.push_back(first);
}

void Writing::write_pieces(const std::optional<SentencePieceModel>& model) {
  if (model && docs_.tokenizer.is_object()) check_same(*model);
  const bool gemma = architecture_.starts_with("gemma");
  std::optional<bool> adds = prefix();
  if (docs_.tokenizer.is_object() &&
      puts_space(docs_.tokenizer) != adds.value_or(true))
    adds = puts_space(docs_.tokenizer);
  else if (docs_.tokenizer.is_null() && !adds && !model->add_dummy_prefix)
    adds = false;
  if (gemma) adds.reset();
  if (adds) put_prefix(*adds);

  GgufVocabulary vocabulary(0, 0);
  if (model) {
    if (model->unigram)
      throw unfaithful_error({"tokenizer.model", {}},
                             "a Unigram model beside a tokenizer.json of BPE")
          .with_hint(kTokenizerHint);
    vocabulary = vocabulary_of(*model, files_, docs_, size_,
                               architecture_ == "phi3", notes_);
    if (!model->charsmap.empty())
      notes_.emplace_back(
          "llama.cpp does not normalize text, as tokenizer.model does");
  } else {
    vocabulary =
        vocabulary_of(docs_.tokenizer, added_tokens(files_, docs_), size_);
    for (uint64_t id = 0; id < vocabulary.tokens.size(); ++id)
      if (is_byte_token(vocabulary.tokens[id]))
        vocabulary.put(id, vocabulary.tokens[id], -1000, TokenType::kByte);
    score_by_merges(vocabulary, docs_.tokenizer);
  }
  put_vocabulary("llama", "default", vocabulary, true);
  put_special(vocabulary.tokens.size(), true, false);
  // Ends of turns that the converter has as numbers.
  const auto eot = [&](size_t id, std::string_view token) {
    if (id < vocabulary.tokens.size() && vocabulary.tokens[id] == token)
      put("eot_token_id", "u32", id);
  };
  if (architecture_ == "gemma") eot(107, "<end_of_turn>");
  if (architecture_ == "llama" && size_ == 32016)
    eot(32010, "\xE2\x96\x81<EOT>");
  if (gemma) put_prefix(false);
}

void Writing::write_unigram(const std::optional<SentencePieceModel>& model) {
  std::string charsmap;
  bool adds = true, removes = true;
  GgufVocabulary vocabulary(0, 0);
  if (docs_.tokenizer.is_object()) {
    vocabulary = unigram_vocabulary(docs_, added_tokens(files_, docs_), size_);
    const Json& normalizer = part(docs_.tokenizer, "normalizer");
    charsmap_of(normalizer, charsmap);
    adds = puts_space(docs_.tokenizer);
    removes =
        has_step(normalizer, "Replace") ||
        has_step(part(docs_.tokenizer, "pre_tokenizer"), "WhitespaceSplit");
  } else {
    vocabulary = vocabulary_of(*model, files_, docs_, size_, false, notes_);
  }
  if (model) {
    adds = model->add_dummy_prefix;
    removes = model->remove_extra_whitespaces;
    charsmap = model->charsmap;
  }
  put_vocabulary("t5", "default", vocabulary, true);
  put_prefix(adds);
  if (architecture_.find("bert") != std::string::npos) put_type_count();
  put("remove_extra_whitespaces", "bool", removes);
  if (!charsmap.empty()) {
    Json bytes = Json::array();
    for (const char c : charsmap) bytes.push_back(static_cast<uint8_t>(c));
    put("precompiled_charsmap", "arr:u8", std::move(bytes));
  }
  put_special(vocabulary.tokens.size(), false, true);
}

void Writing::write_words(const Json& tokenizer) {
  const Json& normalizer = part(tokenizer, "normalizer");
  const Json& model = tokenizer.at("model");
  const Json& pre = part(tokenizer, "pre_tokenizer");
  if (!normalizer.is_object() ||
      normalizer.value("type", "") != "BertNormalizer" ||
      !normalizer.value("handle_chinese_chars", true) ||
      !normalizer.value("clean_text", true) ||
      model.value("continuing_subword_prefix", "##") != "##" ||
      (pre.is_object() && pre.value("type", "") != "BertPreTokenizer"))
    throw unfaithful_error({kFile, {}},
                           "WordPiece, but not as BERT has it, which is what "
                           "llama.cpp knows")
        .with_hint(kTokenizerHint);
  GgufVocabulary vocabulary =
      vocabulary_of(tokenizer, added_tokens(files_, docs_), size_);
  // A word's first piece has a space, the others lose their mark.
  for (uint64_t id = 0; id < vocabulary.tokens.size(); ++id) {
    std::string& token = vocabulary.tokens[id];
    if (vocabulary.types[id] == TokenType::kControl) continue;
    if (token.starts_with("##"))
      token.erase(0, 2);
    else
      token.insert(0, "\xE2\x96\x81");
  }
  put_type_count();
  // llama.cpp reads `pre` for BPE alone.
  put_vocabulary("bert", "default", vocabulary, false);
  put_special(vocabulary.tokens.size(), true, false);
}

}  // namespace

GgufKeys gguf_of_tokenizer(const TokenizerFiles& files, uint64_t vocab_size,
                           const std::string& architecture,
                           std::vector<std::string>& notes) {
  try {
    return Writing(files, vocab_size, architecture, notes).keys();
  } catch (const Json::exception& error) {
    throw input_error({kFile, {}}, "a value of another kind than expected: {}",
                      error.what());
  }
}

}  // namespace ckpt::families
