// SPDX-License-Identifier: Apache-2.0
// Jinja templates. Without a sandbox a template reaches any of Python through
// attributes with underscores in front:
// x.__class__.__mro__[1].__subclasses__(). Such a name is written, escaped, or
// put together:
//
//   x.__class__   x["\x5f\x5fclass__"]   x|attr("__cl" ~ "ass__")
//
// So a name must not begin with an underscore, a string must not begin with two
// or spell one by an escape, and what is looked up must not be computed from
// strings. Templates of chats need none of that: members of messages and tools
// have plain names.
#include <algorithm>
#include <cctype>
#include <set>
#include <span>
#include <vector>

#include "formats/scan/configs.h"

namespace ckpt::scan {
namespace {

struct Token {
  enum Kind : uint8_t { kWord, kString, kNumber, kSign } kind;
  std::string text;     // of a string: its content
  bool spells = false;  // a string with an escape for an underscore
  bool is(std::string_view other) const {
    return kind != kString && text == other;
  }
};
using Tokens = std::span<const Token>;

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// Letters that escapes spell: \x5f, \u005f, \137, \N{LOW LINE}.
bool spells_underscore(std::string_view escape) {
  const char kind = escape[0];
  if (kind == 'N') return true;
  if (kind >= '0' && kind <= '7') return escape.starts_with("137");
  const size_t size = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
  std::string_view code = escape.substr(1).substr(0, size);
  code.remove_prefix(std::min(code.find_first_not_of('0'), code.size()));
  return code == "5f" || code == "5F";
}

Token string_at(std::string_view text, size_t& at) {
  Token token{Token::kString, {}, false};
  const char quote = text[at++];
  for (; at < text.size() && text[at] != quote; ++at) {
    if (text[at] == '\\' && at + 1 < text.size()) {
      ++at;
      token.spells = token.spells || spells_underscore(text.substr(at));
    }
    token.text += text[at];
  }
  at = std::min(at + 1, text.size());
  return token;
}

// Of the expression that begins at `at`, up to its `end`.
std::vector<Token> tokens_of(std::string_view text, size_t& at,
                             std::string_view end) {
  std::vector<Token> tokens;
  while (at < text.size() && !text.substr(at).starts_with(end)) {
    const char c = text[at];
    if (c == '\'' || c == '"') {
      tokens.push_back(string_at(text, at));
      continue;
    }
    const size_t begin = at;
    while (at < text.size() && is_word(text[at])) ++at;
    const auto kind = at == begin ? Token::kSign
                      : std::isdigit(static_cast<unsigned char>(c)) != 0
                          ? Token::kNumber
                          : Token::kWord;
    at = std::max(at, begin + 1);
    if (std::isspace(static_cast<unsigned char>(c)) == 0)
      tokens.push_back({kind, std::string(text.substr(begin, at - begin))});
  }
  at = std::min(at + end.size(), text.size());
  return tokens;
}

class Template {
 public:
  std::string find(std::string_view text) {
    for (size_t at = 0; at + 1 < text.size() && found_.empty();) {
      const char next = text[at] == '{' ? text[at + 1] : ' ';
      if (next == '#') {
        at = text.find("#}", at);
        if (at == text.npos) break;
      } else if (next == '{' || next == '%') {
        at += 2;
        expression(tokens_of(text, at, next == '{' ? "}}" : "%}"));
      } else {
        ++at;
      }
    }
    return found_;
  }

 private:
  void expression(const std::vector<Token>& tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      const Token& token = tokens[i];
      const bool member = i > 0 && tokens[i - 1].is(".");
      if (token.kind == Token::kWord &&
          (token.text.starts_with("__") || (member && token.text[0] == '_')))
        found_ = token.text;
      if (token.kind == Token::kString &&
          (token.spells || token.text.starts_with("__") ||
           token.text.find(".__") != token.text.npos))
        found_ = token.text;
      if ((token.is("[") && i > 0 && holds(tokens[i - 1])) ||
          (token.is("(") && i > 1 && looks_up(tokens[i - 1]) &&
           tokens[i - 2].is("|")))
        looked_up(inner(tokens, i));
    }
    assigned(tokens);
  }

  // True if what follows in brackets is looked up in it.
  static bool holds(const Token& token) {
    static constexpr std::string_view kKeywords[] = {
        "and", "elif", "else", "if", "in", "is", "not", "or", "set"};
    if (token.kind == Token::kWord)
      return std::ranges::find(kKeywords, token.text) == std::end(kKeywords);
    return token.kind == Token::kString || token.is(")") || token.is("]") ||
           token.is("}");
  }

  // Filters that look up a name that they are given.
  static bool looks_up(const Token& token) {
    static constexpr std::string_view kFilters[] = {
        "attr",       "groupby", "map",        "max",  "min", "reject",
        "rejectattr", "select",  "selectattr", "sort", "sum", "unique"};
    return std::ranges::find(kFilters, token.text) != std::end(kFilters);
  }

  // What is between a bracket and the one that closes it.
  static Tokens inner(Tokens tokens, size_t open) {
    int depth = 0;
    for (size_t i = open; i < tokens.size(); ++i) {
      if (tokens[i].is("[") || tokens[i].is("(")) ++depth;
      if ((tokens[i].is("]") || tokens[i].is(")")) && --depth == 0)
        return tokens.subspan(open + 1, i - open - 1);
    }
    return tokens.subspan(open + 1);
  }

  void looked_up(Tokens tokens) {
    if (!tokens.empty() && tokens[0].kind == Token::kString &&
        tokens[0].text.starts_with("_"))
      found_ = tokens[0].text;
    if (!computed(tokens)) return;
    found_.clear();
    for (const Token& token : tokens) found_ += token.text;
  }

  // True if strings are put together, or taken apart, to make a name.
  bool computed(Tokens tokens) const {
    static constexpr std::string_view kPlain[] = {"abs", "count", "int",
                                                  "length"};
    const bool strings = std::ranges::any_of(tokens, [](const Token& token) {
      return token.kind == Token::kString;
    });
    for (size_t i = 0; i < tokens.size(); ++i) {
      const Token& token = tokens[i];
      if (token.is("~")) return true;
      if (strings && (token.is("+") || token.is("*") || token.is("%")))
        return true;
      if (token.is("|") && i + 1 < tokens.size() &&
          std::ranges::find(kPlain, tokens[i + 1].text) == std::end(kPlain))
        return true;
      if (token.kind != Token::kWord) continue;
      if (built_.contains(token.text)) return true;
      const bool called = i + 1 < tokens.size() && tokens[i + 1].is("(");
      if (called && !tokens[i].is("range")) return true;
    }
    return false;
  }

  // {% set a = … %}, {% for a in … %}: a is built if what it gets is.
  void assigned(Tokens tokens) {
    const auto equals = std::ranges::find_if(tokens, [](const Token& token) {
      return token.is("=") || token.is("in");
    });
    const auto from = static_cast<size_t>(equals - tokens.begin());
    if (from == tokens.size() || tokens.size() < 2) return;
    const auto first = std::ranges::find_if(
        tokens, [](const Token& t) { return t.is("set") || t.is("for"); });
    if (first >= equals || !makes_names(tokens.subspan(from + 1))) return;
    for (auto name = first + 1; name < equals; ++name)
      if (name->kind == Token::kWord) built_.insert(name->text);
  }

  // Texts are often put together, and not looked up afterwards. A name that is
  // has underscores from somewhere.
  bool makes_names(Tokens tokens) const {
    const bool underscore = std::ranges::any_of(tokens, [](const Token& token) {
      return token.kind == Token::kString &&
             token.text.find('_') != std::string::npos;
    });
    const bool letters = std::ranges::any_of(tokens, [](const Token& token) {
      return token.is("string") || token.is("format") || token.is("chr") ||
             token.is("dict") || token.is("pprint") || token.is("urlencode");
    });
    return (underscore || letters ||
            std::ranges::any_of(tokens,
                                [&](const Token& token) {
                                  return built_.contains(token.text);
                                })) &&
           (computed(tokens) || letters);
  }

  std::set<std::string, std::less<>> built_;
  std::string found_;
};

}  // namespace

std::string reaching_out(std::string_view source) {
  return Template().find(source);
}

}  // namespace ckpt::scan
