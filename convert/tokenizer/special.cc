// SPDX-License-Identifier: Apache-2.0
#include "convert/tokenizer/special.h"

#include <algorithm>
#include <cctype>

#include "ckpt/error.h"
#include "convert/tokenizer/steps.h"
#include "lib/text/json.h"

namespace ckpt::families {
namespace {

// As Python's dict.get on what may be no object.
Json get(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? Json() : *found;
}

bool given(const Json& value) {
  return !value.is_null() && value != Json("") && value != Json::object() &&
         value != Json(false);
}

Json special_id(const Json& entry) {
  return get(get(entry, "SpecialToken"), "id");
}
Json sequence_id(const Json& entry) {
  return get(get(entry, "Sequence"), "id");
}

// Which tokens post_processor adds, and what that says of their names.
class PostProcessor {
 public:
  PostProcessor(GgufSpecial& special, const Json& tokenizer, Json& config)
      : special_(special), config_(config) {
    bos_ = get(config_, "bos_token");
    cls_ = get(config_, "cls_token");
    eos_ = get(config_, "eos_token");
    sep_ = get(config_, "sep_token");
    if (!given(bos_) && given(cls_)) name("bos", bos_ = cls_);
    if (!given(eos_) && given(sep_)) name("eos", eos_ = sep_);
    const Json all = get(tokenizer, "post_processor");
    if (!given(all)) return;
    if (const Json some = get(all, "processors"); some.is_array())
      for (const Json& processor : some) take(processor);
    else
      take(all);
  }

  const std::vector<std::string>& more_types() const { return more_types_; }

 private:
  void name(const std::string& type, const Json& token) {
    if (config_.is_object()) config_[type + "_token"] = token;
  }
  void set(const std::string& type, bool value) {
    const auto found = std::ranges::find(special_.add, type,
                                         &std::pair<std::string, bool>::first);
    if (found != special_.add.end())
      found->second = value;
    else
      special_.add.emplace_back(type, value);
  }

  void take(const Json& processor) {
    const Json type = get(processor, "type");
    if (type == "ByteLevel") {
      for (const char* token : {"bos", "eos"})
        if (!special_.adds(token)) set(token, false);
    } else if (type == "RobertaProcessing") {
      take_roberta(processor);
    } else if (type == "TemplateProcessing") {
      const Json single = get(processor, "single");
      Json first, last;
      if (single.is_array() && single.size() > 1) {
        if (first = special_id(single.front()); given(first)) take_first(first);
        if (last = special_id(single.back()); given(last)) take_last(last);
      }
      take_pair(get(processor, "pair"), first, last);
    }
  }

  void take_roberta(const Json& processor) {
    for (const char* type : {"bos", "eos", "sep"}) set(type, true);
    for (const bool sep : {false, true}) {
      Json& known = sep ? sep_ : cls_;
      if (given(known) || !config_.is_object()) continue;
      const Json stated = get(processor, sep ? "sep" : "cls");
      known = stated.is_array() && !stated.empty() ? stated[0]
              : sep                                ? eos_
                                                   : bos_;
      name(sep ? "sep" : "cls", known);
    }
  }

  void take_first(const Json& first) {
    if (!config_.is_object()) {
      bos_ = first;
    } else if (first != bos_ && first != cls_) {
      if (!given(bos_)) name("bos", bos_ = first);
      if (!given(cls_)) name("cls", cls_ = first);
    }
    set("bos", first == bos_ || first == cls_);
  }

  // Where the template ends with another token than the end of a text, that
  // one is written as the end of a turn, and the template's as the end.
  void take_last(const Json& last) {
    if (!config_.is_object()) {
      eos_ = last;
    } else if (last != eos_) {
      const char* unused = more_types_.empty()       ? "eot"
                           : more_types_.size() == 1 ? "eom"
                                                     : nullptr;
      if (unused != nullptr) {
        more_types_.emplace_back(unused);
        name(unused, eos_);
      }
      name("eos", eos_ = last);
    }
    set("eos", last == eos_);
  }

  void take_pair(const Json& pair, const Json& first, const Json& last) {
    if (!pair.is_array() || pair.empty()) return;
    auto begin = pair.begin(), end = pair.end();
    if (given(first) && special_id(pair.front()) == first) ++begin;
    if (given(last) && begin != end && special_id(pair.back()) == last) --end;
    if (end - begin < 3 || sequence_id(*begin) != "A" ||
        sequence_id(*(end - 1)) != "B")
      return;
    ++begin, --end;
    const auto ends = [&](const Json& id) {
      return given(id) && (id == sep_ || id == eos_);
    };
    bool add = ends(special_id(*begin)) && !given(last);
    if (end - begin == 2 && ends(special_id(*(begin + 1)))) add = true;
    set("sep", add);
    if (add && !given(sep_)) name("sep", eos_);
  }

  GgufSpecial& special_;
  Json& config_;
  Json bos_, cls_, eos_, sep_;
  std::vector<std::string> more_types_;
};

void take_normalizer(GgufSpecial& special, const Json& normalizer) {
  const Json type = get(normalizer, "type");
  const auto put = [&](const char* what, const Json& value) {
    const std::string key = std::string("tokenizer.ggml.normalizer.") + what;
    std::erase_if(special.normalizer,
                  [&](const GgufKey& have) { return have.key == key; });
    if (value.is_boolean())
      special.normalizer.push_back(GgufKey{key, "bool", value});
  };
  if (type == "Lowercase") put("lowercase", true);
  if (type == "StripAccents") put("strip_accents", true);
  if (type == "BertNormalizer") {
    put("lowercase", get(normalizer, "lowercase"));
    put("strip_accents", get(normalizer, "strip_accents"));
  }
  if (const Json some = get(normalizer, "normalizers");
      type == "Sequence" && some.is_array())
    for (const Json& one : some) take_normalizer(special, one);
}

Json templates_of(const TokenizerFiles& files, const Json& config) {
  if (config.contains("chat_template")) return config["chat_template"];
  const auto jinja = files.find("chat_template.jinja");
  if (jinja != files.end()) {
    constexpr std::string_view kFolder = "additional_chat_templates/";
    Json all =
        Json::array({{{"name", "default"}, {"template", jinja->second}}});
    for (const auto& [name, content] : files)
      if (name.starts_with(kFolder) && name.ends_with(".jinja"))
        all.push_back({{"name", name.substr(kFolder.size(),
                                            name.size() - kFolder.size() - 6)},
                       {"template", content}});
    return all.size() == 1 ? Json(jinja->second) : all;
  }
  const auto json = files.find("chat_template.json");
  if (json == files.end()) return nullptr;
  return get(text::parse_python_json(json->second, json->first),
             "chat_template");
}

GgufKeys chat_keys(const Json& templates) {
  const std::string key = "tokenizer.chat_template";
  if (templates.is_string()) return {GgufKey{key, "str", templates}};
  GgufKeys keys;
  if (!templates.is_array()) return keys;
  Json first, names = Json::array();
  for (const Json& choice : templates) {
    const Json content = get(choice, "template"), said = get(choice, "name");
    if (!content.is_string() || !said.is_string() || said == "") continue;
    // A byte is not a letter: the peer replaces characters.
    std::string name;
    for (const char c : said.get<std::string>())
      if (static_cast<unsigned char>(c) < 0x80)
        name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
      else if ((static_cast<unsigned char>(c) & 0xC0) != 0x80)
        name += '_';
    if (name == "default") {
      first = content;
      continue;
    }
    keys.push_back(GgufKey{fmt::format("{}.{}", key, name), "str", content});
    if (std::ranges::count(names, Json(name)) == 0) names.push_back(name);
  }
  if (!names.empty())
    keys.push_back(GgufKey{"tokenizer.chat_templates", "arr:str", names});
  if (first.is_string()) keys.push_back(GgufKey{key, "str", first});
  return keys;
}

// The id of the added token that has this text.
Json id_of(const Json& tokenizer, const Json& token) {
  const Json text = token.is_object() ? get(token, "content") : token;
  const Json added = get(tokenizer, "added_tokens");
  if (!text.is_string() || !added.is_array()) return nullptr;
  for (const Json& one : added)
    if (get(one, "content") == text) return get(one, "id");
  return nullptr;
}

}  // namespace

void GgufSpecial::set_id(const std::string& type, const Json& id,
                         std::optional<uint64_t> below) {
  if (!id.is_number_unsigned()) return;
  const auto value = id.get<uint64_t>();
  if (value >= below.value_or(uint64_t{1} << 32)) return;
  if (std::ranges::count(ids, type, &std::pair<std::string, uint64_t>::first) ==
      0)
    ids.emplace_back(type, value);
}

std::optional<bool> GgufSpecial::adds(const std::string& type) const {
  for (const auto& [name, value] : add)
    if (name == type) return value;
  return std::nullopt;
}

GgufSpecial gguf_special(const TokenizerFiles& files, const TokenizerDocs& docs,
                         std::optional<uint64_t> below) {
  GgufSpecial special;
  Json config = docs.config;
  std::vector<std::string> types = {"bos", "eos", "unk", "sep",
                                    "pad", "cls", "mask"};
  if (docs.tokenizer.is_object()) {
    take_normalizer(special, get(docs.tokenizer, "normalizer"));
    std::ranges::sort(special.normalizer, {}, &GgufKey::key);
    const PostProcessor added(special, docs.tokenizer, config);
    types.insert(types.end(), added.more_types().begin(),
                 added.more_types().end());
  }
  if (config.is_object() && !config.empty()) {
    special.chat = chat_keys(templates_of(files, config));
    for (const std::string& type : types) {
      const Json add = get(config, ("add_" + type + "_token").c_str());
      if (add.is_boolean() && !special.adds(type))
        special.add.emplace_back(type, add.get<bool>());
      special.set_id(
          type, id_of(docs.tokenizer, get(config, (type + "_token").c_str())),
          below);
    }
  }
  for (const std::string& type : types) {
    const std::string key = type + "_token_id";
    Json id = get(docs.model, key.c_str());
    if (id.is_null()) id = get(get(docs.model, "text_config"), key.c_str());
    special.set_id(type, id, below);
  }
  return special;
}

void settle_ends(GgufSpecial& special, const TokenizerDocs& docs, bool bos,
                 bool eos, std::vector<std::string>& notes) {
  const bool silent = docs.tokenizer.is_object() &&
                      part(docs.tokenizer, "post_processor").is_null();
  for (const auto& [type, does] : {std::pair("bos", bos), {"eos", eos}}) {
    if (special.adds(type).value_or(false) &&
        std::ranges::count(special.ids, type,
                           &std::pair<std::string, uint64_t>::first) == 0)
      throw unfaithful_error({"tokenizer.json", {}},
                             "post_processor adds a {} token, and neither "
                             "tokenizer_config.json nor config.json says which",
                             type)
          .with_hint(kTokenizerHint);
    if (!silent || !does || special.adds(type)) continue;
    // tokenizer.json adds nothing that it doesn't say, but for classes that are
    // named after SentencePiece's models: in transformers 4 they do.
    if (class_has(docs.config, "Llama") || class_has(docs.config, "Gemma"))
      notes.push_back(fmt::format(
          "no file says whether a {} token is added to a text: llama.cpp does",
          type));
    else
      special.add.emplace_back(type, false);
  }
}

void append_keys(GgufKeys& keys, const GgufSpecial& special) {
  // The gguf package has no key for cls, and spells the separator its own way.
  static const std::map<std::string, std::string> kNames = {
      {"bos", "bos"},     {"eos", "eos"},       {"unk", "unknown"},
      {"pad", "padding"}, {"sep", "seperator"}, {"mask", "mask"},
      {"eot", "eot"},     {"eom", "eom"}};
  for (const auto& [type, id] : special.ids)
    if (const auto name = kNames.find(type); name != kNames.end())
      keys.push_back(
          GgufKey{"tokenizer.ggml." + name->second + "_token_id", "u32", id});
  for (const auto& [type, add] : special.add)
    if (type == "bos" || type == "eos" || type == "sep")
      keys.push_back(
          GgufKey{"tokenizer.ggml.add_" + type + "_token", "bool", add});
  keys.insert(keys.end(), special.chat.begin(), special.chat.end());
  keys.insert(keys.end(), special.normalizer.begin(), special.normalizer.end());
}

}  // namespace ckpt::families
