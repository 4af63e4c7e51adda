// SPDX-License-Identifier: Apache-2.0
// tokenizer_of_gguf: tokenizer.json out of GGUF's metadata.
#include <algorithm>
#include <cctype>
#include <optional>
#include <set>

#include "ckpt/error.h"
#include "convert/tokenizer/metadata.h"
#include "convert/tokenizer/pre.h"
#include "convert/tokenizer/tokenizer.h"
#include "lib/text/format.h"
#include "lib/text/json.h"

namespace ckpt::families {
namespace {

const std::string kGgmlKeys = "tokenizer.ggml.";
constexpr const char* kOther =
    "take the tokenizer of the model's own folder: --tokenizer-from DIR";

std::string base64_of(const std::string& bytes) {
  constexpr const char* kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string made;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - at);
    uint32_t word = 0;
    for (size_t i = 0; i < 3; ++i)
      word = word << 8 |
             (i < count ? static_cast<uint8_t>(bytes[at + i]) : uint32_t{0});
    for (size_t i = 0; i < 4; ++i)
      made += i <= count ? kDigits[word >> (18 - 6 * i) & 63] : '=';
  }
  return made;
}

// The tokens that are put around a text.
struct Around {
  std::optional<uint64_t> first, last, separator;
};

// tokenizer.json; the parts that are null stay null there.
struct Parts {
  Json normalizer, pre_tokenizer, post_processor, decoder;
  std::string model;  // text: a vocabulary in the order of its ids
};

class GgufReading {
 public:
  GgufReading(const Json& metadata, const std::string& source)
      : data_(metadata, source) {}

  TokenizerFiles files();

 private:
  Around around(bool bos, bool eos) const;
  std::string bpe_text(
      const std::vector<std::pair<std::string, std::string>>& merges,
      bool fallback, bool ignore_merges) const;
  Json added() const;
  Json template_of(const Around& around, bool twice) const;
  Json special(uint64_t token, int type) const {
    return {{"SpecialToken", {{"id", data_.tokens[token]}, {"type_id", type}}}};
  }

  Parts bytes();
  Parts pieces(bool merges);
  Parts unigram();
  Parts words();
  Json config(const std::string& model) const;
  Json generation() const;
  void add_templates(TokenizerFiles& made) const;

  GgufMetadata data_;
};

std::string GgufReading::bpe_text(
    const std::vector<std::pair<std::string, std::string>>& merges,
    bool fallback, bool ignore_merges) const {
  const std::optional<uint64_t> unknown = data_.id("unknown");
  const auto word = [](bool value) { return value ? "true" : "false"; };
  std::string made = "{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":";
  made += fallback && unknown ? json_text(data_.tokens[*unknown]) : "null";
  made +=
      ",\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
      "\"fuse_unk\":";
  made += word(fallback && unknown.has_value());
  made += std::string(",\"byte_fallback\":") + word(fallback) +
          ",\"ignore_merges\":" + word(ignore_merges) +
          ",\"vocab\":" + data_.vocab_text() + ",\"merges\":[";
  bool more = false;
  for (const auto& [left, right] : merges) {
    if (more) made += ',';
    more = true;
    made += '[' + json_text(left) + ',' + json_text(right) + ']';
  }
  return made + "]}";
}

// Tokens that are found in a text before it is cut into words.
Json GgufReading::added() const {
  std::set<uint64_t> named;
  for (const auto& [name, token] : data_.ids) named.insert(token);
  const bool typed = data_.find(kGgmlKeys + "token_type") != nullptr;
  Json list = Json::array();
  for (uint64_t token = 0; token < data_.tokens.size(); ++token) {
    const bool special = data_.is(token, TokenType::kControl) ||
                         data_.is(token, TokenType::kUnknown) ||
                         (!typed && named.contains(token));
    if (!special && !data_.is(token, TokenType::kUserDefined)) continue;
    list.push_back({{"id", token},
                    {"content", data_.tokens[token]},
                    {"single_word", false},
                    {"lstrip", false},
                    {"rstrip", false},
                    {"normalized", false},
                    {"special", special}});
  }
  return list;
}

// By the keys, or what llama.cpp does where there are none.
Around GgufReading::around(bool bos, bool eos) const {
  Around made;
  if (data_.flag("add_bos_token").value_or(bos)) made.first = data_.id("bos");
  if (data_.flag("add_eos_token").value_or(eos)) made.last = data_.id("eos");
  // One more between the texts of a pair.
  if (data_.flag("add_sep_token").value_or(false))
    made.separator =
        data_.id("seperator") ? data_.id("seperator") : data_.id("eos");
  return made;
}

// `twice`: the first token comes before each text of a pair, too.
Json GgufReading::template_of(const Around& around, bool twice) const {
  Json single = Json::array(), pair = Json::array(), ids = Json::object();
  const auto put = [&](Json& list, std::optional<uint64_t> token, int type) {
    if (!token) return;
    list.push_back(special(*token, type));
    const std::string& text = data_.tokens[*token];
    ids[text] = {{"id", text}, {"ids", {*token}}, {"tokens", {text}}};
  };
  for (Json* list : {&single, &pair}) {
    put(*list, around.first, 0);
    list->push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
    put(*list, around.last, 0);
  }
  put(pair, around.separator, 0);
  if (twice) put(pair, around.first, 1);
  pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
  put(pair, around.last, 1);
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", pair},
          {"special_tokens", ids}};
}

Parts GgufReading::bytes() {
  const std::string key = kGgmlKeys + "pre";
  const std::string name = data_.text_of(key);
  const GgufPre* pre = gguf_pre_named(name);
  if (pre == nullptr || pre->raw)
    throw unfaithful_error({data_.source, key},
                           "{}: how it cuts text into words is not known",
                           name.empty() ? "not given" : text::printable(name))
        .with_hint(kOther);
  Parts parts;
  // tokenizer.json of all of these has it; GGUF does not say.
  if (name == "qwen2") parts.normalizer = {{"type", "NFC"}};
  parts.pre_tokenizer = pre_tokenizer_of(*pre);
  parts.decoder = {{"type", "ByteLevel"},
                   {"add_prefix_space", true},
                   {"trim_offsets", true},
                   {"use_regex", true}};
  parts.model = bpe_text(data_.listed_merges(), false, pre->ignore_merges);
  const Around set = around(pre->add_bos, false);
  const Json level = {{"type", "ByteLevel"},
                      {"add_prefix_space", true},
                      {"trim_offsets", false},
                      {"use_regex", true}};
  if (set.first && set.last &&
      data_.flag("add_sep_token").value_or(pre->add_sep))
    parts.post_processor = {{"type", "RobertaProcessing"},
                            {"sep", {data_.tokens[*set.last], *set.last}},
                            {"cls", {data_.tokens[*set.first], *set.first}},
                            {"trim_offsets", true},
                            {"add_prefix_space", false}};
  else if (set.first || set.last)
    parts.post_processor = {{"type", "Sequence"},
                            {"processors", {level, template_of(set, true)}}};
  else
    parts.post_processor = level;
  return parts;
}

Parts GgufReading::pieces(bool merges) {
  if (!merges) {
    data_.ids.try_emplace("bos", 1);
    data_.ids.try_emplace("eos", 2);
    data_.ids.try_emplace("unknown", 0);
    for (const char* name : {"bos", "eos", "unknown"})
      if (data_.ids[name] >= data_.tokens.size()) data_.ids.erase(name);
  }
  const bool prefix = data_.flag("add_space_prefix").value_or(!merges);
  const Json replace = {{"type", "Replace"},
                        {"pattern", {{"String", " "}}},
                        {"content", kMetaspace}};
  Parts parts;
  parts.normalizer = replace;
  if (prefix)
    parts.normalizer = {
        {"type", "Sequence"},
        {"normalizers",
         Json::array(
             {{{"type", "Prepend"}, {"prepend", kMetaspace}}, replace})}};
  Json steps = Json::array({{{"type", "Replace"},
                             {"pattern", {{"String", kMetaspace}}},
                             {"content", " "}},
                            {{"type", "ByteFallback"}},
                            {{"type", "Fuse"}}});
  if (prefix)
    steps.push_back(
        {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  parts.decoder = {{"type", "Sequence"}, {"decoders", steps}};
  parts.model = bpe_text(merges ? data_.listed_merges() : data_.scored_merges(),
                         data_.any(TokenType::kByte), false);
  const Around set = around(true, false);
  if (set.first || set.last) parts.post_processor = template_of(set, true);
  return parts;
}

Parts GgufReading::unigram() {
  data_.ids.try_emplace("eos", 1);
  data_.ids.try_emplace("unknown", 2);
  data_.ids.try_emplace("padding", 0);
  for (const char* name : {"eos", "unknown", "padding"})
    if (data_.ids[name] >= data_.tokens.size()) data_.ids.erase(name);
  const std::vector<double> scores = data_.all_scores();
  Parts parts;
  Json steps = Json::array();
  if (const Json* map = data_.find(kGgmlKeys + "precompiled_charsmap")) {
    std::string bytes;
    if (!map->is_array())
      throw data_.damaged(kGgmlKeys + "precompiled_charsmap", "expected bytes");
    for (const Json& byte : *map) {
      if (!byte.is_number_integer() || byte < -128 || byte > 255)
        throw data_.damaged(kGgmlKeys + "precompiled_charsmap",
                            "expected bytes");
      bytes += static_cast<char>(byte.get<int>());
    }
    steps.push_back(
        {{"type", "Precompiled"}, {"precompiled_charsmap", base64_of(bytes)}});
  }
  if (data_.flag("remove_extra_whitespaces").value_or(false)) {
    steps.push_back(
        {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}});
    steps.push_back({{"type", "Replace"},
                     {"pattern", {{"Regex", " {2,}"}}},
                     {"content", " "}});
  }
  if (!steps.empty())
    parts.normalizer = {{"type", "Sequence"}, {"normalizers", steps}};
  const bool prefix = data_.flag("add_space_prefix").value_or(true);
  const Json metaspace = {{"type", "Metaspace"},
                          {"replacement", kMetaspace},
                          {"prepend_scheme", prefix ? "always" : "never"},
                          {"split", true}};
  parts.pre_tokenizer = parts.decoder = metaspace;
  const std::optional<uint64_t> unknown = data_.id("unknown");
  parts.model =
      "{\"type\":\"Unigram\",\"unk_id\":" +
      (unknown ? std::to_string(*unknown) : "null") +
      ",\"byte_fallback\":" + (data_.any(TokenType::kByte) ? "true" : "false") +
      ",\"vocab\":[";
  for (uint64_t token = 0; token < data_.tokens.size(); ++token) {
    if (token > 0) parts.model += ',';
    parts.model += '[' + json_text(data_.tokens[token]) + ',' +
                   Json(scores[token]).dump() + ']';
  }
  parts.model += "]}";
  const Around set = around(false, true);
  if (set.first || set.last) parts.post_processor = template_of(set, false);
  return parts;
}

Parts GgufReading::words() {
  const std::map<std::string, uint64_t> usual = {{"bos", 101},
                                                 {"unknown", 100},
                                                 {"seperator", 102},
                                                 {"padding", 0},
                                                 {"mask", 103}};
  // Older converters have a key for what begins a text.
  if (data_.id("cls")) data_.ids.try_emplace("bos", *data_.id("cls"));
  for (const auto& [name, token] : usual)
    if (token < data_.tokens.size()) data_.ids.try_emplace(name, token);
  for (uint64_t token = 0; token < data_.tokens.size(); ++token) {
    if (data_.is(token, TokenType::kControl) || data_.left_out(token)) continue;
    std::string& text = data_.tokens[token];
    if (text.starts_with(kMetaspace))
      text.erase(0, 3);
    else
      text.insert(0, "##");
  }
  Parts parts;
  const std::optional<bool> accents = data_.flag("normalizer.strip_accents");
  parts.normalizer = {
      {"type", "BertNormalizer"},
      {"clean_text", true},
      {"handle_chinese_chars", true},
      {"strip_accents", accents ? Json(*accents) : Json()},
      {"lowercase", data_.flag("normalizer.lowercase").value_or(true)}};
  parts.pre_tokenizer = {{"type", "BertPreTokenizer"}};
  parts.decoder = {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}};
  const std::optional<uint64_t> unknown = data_.id("unknown");
  if (!unknown)
    throw data_.damaged(kGgmlKeys + "unknown_token_id", "not given");
  parts.model = "{\"type\":\"WordPiece\",\"unk_token\":" +
                json_text(data_.tokens[*unknown]) +
                ",\"continuing_subword_prefix\":\"##\","
                "\"max_input_chars_per_word\":100,\"vocab\":" +
                data_.vocab_text() + '}';
  Around set;
  // llama.cpp puts the separator after every text, whatever a key says.
  if (data_.flag("add_bos_token").value_or(true)) set.first = data_.id("bos");
  set.last = data_.id("seperator");
  if (set.first || set.last) parts.post_processor = template_of(set, false);
  return parts;
}

Json GgufReading::config(const std::string& model) const {
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"clean_up_tokenization_spaces", false}};
  const bool words = model == "bert";
  static const std::map<std::string, std::string> kNames = {
      {"bos", "bos_token"},     {"eos", "eos_token"},
      {"unknown", "unk_token"}, {"seperator", "sep_token"},
      {"padding", "pad_token"}, {"mask", "mask_token"}};
  for (const auto& [name, key] : kNames)
    if (const std::optional<uint64_t> token = data_.id(name))
      if (!words || (name != "bos" && name != "eos"))
        config[key] = data_.tokens[*token];
  if (words && data_.id("bos"))
    config["cls_token"] = data_.tokens[*data_.id("bos")];
  for (const char* name : {"add_bos_token", "add_eos_token"})
    if (const std::optional<bool> value = data_.flag(name); value && !words)
      config[name] = *value;
  if (const std::optional<bool> prefix = data_.flag("add_space_prefix");
      prefix && model == "llama")
    config["add_prefix_space"] = *prefix;
  const Json* architecture = data_.find("general.architecture");
  if (architecture != nullptr && architecture->is_string()) {
    const Json* length =
        data_.find(architecture->get<std::string>() + ".context_length");
    if (length != nullptr && length->is_number_unsigned())
      config["model_max_length"] = *length;
  }
  return config;
}

// A text ends at the end of a turn, too.
Json GgufReading::generation() const {
  Json made = Json::object();
  if (data_.id("bos")) made["bos_token_id"] = *data_.id("bos");
  if (data_.id("padding")) made["pad_token_id"] = *data_.id("padding");
  Json ends = Json::array();
  for (const char* name : {"eos", "eot", "eom"})
    if (const std::optional<uint64_t> token = data_.id(name);
        token && std::ranges::count(ends, Json(*token)) == 0)
      ends.push_back(*token);
  if (ends.size() == 1) made["eos_token_id"] = ends[0];
  if (ends.size() > 1) made["eos_token_id"] = ends;
  return made;
}

void GgufReading::add_templates(TokenizerFiles& made) const {
  const std::string key = "tokenizer.chat_template";
  if (data_.find(key) != nullptr)
    made["chat_template.jinja"] = data_.text_of(key);
  for (const auto& [name, value] : data_.all.items()) {
    if (!name.starts_with(key + '.')) continue;
    const std::string own = name.substr(key.size() + 1);
    // It becomes a file's name.
    if (own.empty() || own.size() > 64 ||
        !std::ranges::all_of(own, [](unsigned char c) {
          return std::isalnum(c) != 0 || c == '_';
        }))
      throw data_.damaged(name, "a name with other than letters, digits and _");
    made["additional_chat_templates/" + own + ".jinja"] = data_.text_of(name);
  }
}

TokenizerFiles GgufReading::files() {
  TokenizerFiles made;
  const std::string model = data_.text_of(kGgmlKeys + "model");
  if (model.empty() || model == "none" || model == "no_vocab") return made;
  data_.read_tokens();
  const bool raw =
      model == "gpt2" && gguf_pre_named(data_.text_of(kGgmlKeys + "pre")) &&
      gguf_pre_named(data_.text_of(kGgmlKeys + "pre"))->escape_whitespaces;
  Parts parts;
  if (raw || model == "gemma4")
    parts = pieces(true);
  else if (model == "gpt2")
    parts = bytes();
  else if (model == "llama")
    parts = pieces(false);
  else if (model == "t5")
    parts = unigram();
  else if (model == "bert")
    parts = words();
  else
    throw unfaithful_error({data_.source, kGgmlKeys + "model"},
                           "{}: tokenizer.json has no such model",
                           text::printable(model))
        .with_hint(kOther);
  const std::string whole = data_.text_of("tokenizer.huggingface.json");
  if (!whole.empty()) {
    text::parse_json(whole, data_.source + " tokenizer.huggingface.json");
    made["tokenizer.json"] = whole;
  } else {
    made["tokenizer.json"] =
        "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,"
        "\"added_tokens\":" +
        added().dump() + ",\"normalizer\":" + parts.normalizer.dump() +
        ",\"pre_tokenizer\":" + parts.pre_tokenizer.dump() +
        ",\"post_processor\":" + parts.post_processor.dump() +
        ",\"decoder\":" + parts.decoder.dump() + ",\"model\":" + parts.model +
        "}\n";
  }
  made["tokenizer_config.json"] = config(model).dump(2) + '\n';
  if (const Json ends = generation(); !ends.empty())
    made["generation_config.json"] = ends.dump(2) + '\n';
  add_templates(made);
  return made;
}

}  // namespace

TokenizerFiles tokenizer_of_gguf(const Json& metadata,
                                 const std::string& source) {
  if (!metadata.is_object())
    throw input_error({source, {}}, "metadata: expected an object");
  return GgufReading(metadata, source).files();
}

}  // namespace ckpt::families
