// SPDX-License-Identifier: Apache-2.0
// The canonical JSON of an object (lib/pickle/json.h) as YAML.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "app/print/value_text.h"
#include "lib/text/format.h"
#include "lib/text/words.h"

namespace ckpt::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kLine = 4096;  // of a value of another class

bool is_tagged(const Json& value) {
  return value.is_object() && !value.empty() &&
         value.begin().key().starts_with("!");
}

bool is_list(std::string_view tag) {
  return tag == "!tuple" || tag == "!Size" || tag == "!set" ||
         tag == "!frozenset";
}

bool is_pairs(std::string_view tag) {
  return tag == "!dict" || tag == "!OrderedDict" || tag == "!Counter";
}

// False for words that YAML takes for something other than a string.
bool is_plain(const std::string& text) {
  constexpr std::string_view kWords = "true false null yes no on off ~ nan inf";
  if (text.empty() || text.size() > 200) return false;
  if (text::has_word(kWords, text::lower(text))) return false;
  const auto first = static_cast<unsigned char>(text[0]);
  return (std::isalpha(first) || first == '_' || first == '/') &&
         std::ranges::all_of(text, [](unsigned char c) {
           return std::isalnum(c) || c == '_' || c == '-' || c == '.' ||
                  c == '/';
         });
}

std::string scalar(const Json& value) {
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    if (is_plain(text)) return text;
    return text::printable(
        value.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  if (is_tagged(value)) {
    const std::string& tag = value.begin().key();
    const Json& inner = value.begin().value();
    // A float as Python writes it; YAML 1.2 reads the same.
    if (tag == "!float" && inner.is_string()) {
      const std::string text = inner.get<std::string>();
      if (text == "nan") return ".nan";
      if (text == "inf" || text == "-inf")
        return text == "inf" ? ".inf" : "-.inf";
      return text::printable(text);
    }
    const std::string text = value_text(value, kLine);
    return is_plain(text) ? text : Json(text).dump();
  }
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The attributes of an object of a class without arguments.
const Json* state_of(const Json& value) {
  if (!value.contains("!object") || !value.contains("state")) return nullptr;
  const Json& state = value["state"];
  return state.is_object() && !state.empty() ? &state : nullptr;
}

bool has_items(const Json& value) {
  if (is_tagged(value)) {
    if (state_of(value) != nullptr) return true;
    const std::string& tag = value.begin().key();
    const Json& inner = value.begin().value();
    return (is_list(tag) || is_pairs(tag)) && inner.is_array() &&
           !inner.empty();
  }
  return (value.is_array() || value.is_object()) && !value.empty();
}

void write(const Json& value, size_t indent, std::string& out);

// "key: scalar", or "key:" and the rest below.
void write_pair(const std::string& key, const Json& value, size_t indent,
                std::string& out) {
  out += std::string(indent, ' ') + key + ":";
  if (has_items(value)) {
    out += '\n';
    write(value, indent + 2, out);
  } else {
    out += ' ' +
           (value.is_array()                     ? std::string("[]")
            : value.is_object() && value.empty() ? std::string("{}")
                                                 : scalar(value)) +
           '\n';
  }
}

void write_list(const Json& list, size_t indent, std::string& out) {
  for (const Json& item : list) {
    out += std::string(indent, ' ') + '-';
    if (has_items(item)) {
      std::string below;
      write(item, indent + 2, below);
      out += ' ' + below.substr(indent + 2);
    } else {
      out += ' ' + scalar(item) + '\n';
    }
  }
}

void write(const Json& value, size_t indent, std::string& out) {
  if (!has_items(value)) {
    out += std::string(indent, ' ') + scalar(value) + '\n';
  } else if (const Json* state = state_of(value)) {
    write(*state, indent, out);
  } else if (is_tagged(value)) {
    const Json& inner = value.begin().value();
    if (is_list(value.begin().key())) return write_list(inner, indent, out);
    for (const Json& pair : inner)
      if (pair.is_array() && pair.size() == 2)
        write_pair(scalar(pair[0]), pair[1], indent, out);
  } else if (value.is_array()) {
    write_list(value, indent, out);
  } else {
    for (const auto& [key, child] : value.items())
      write_pair(scalar(Json(key)), child, indent, out);
  }
}

}  // namespace

std::string yaml_text(const Json& value) {
  std::string out;
  write(value, 0, out);
  return out;
}

}  // namespace ckpt::app
