// SPDX-License-Identifier: Apache-2.0
#include "convert/tokenizer/pre.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "lib/embedded.h"

namespace ckpt::families {
namespace {

using Regexes = std::vector<std::string>;

// ByteLevel has this expression built in.
constexpr std::string_view kGpt2 =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!"
    "\\S)";

bool is_letter(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0;
}

// "(?i:'s|[dm])" is "(?:'[sS]|[dDmM])", as llama.cpp's engine needs it.
std::string without_case(const std::string& regex) {
  std::string made;
  for (size_t at = 0; at < regex.size(); ++at) {
    if (regex.compare(at, 4, "(?i:") != 0) {
      made += regex[at];
      continue;
    }
    made += "(?:";
    bool in_class = false;
    for (at += 4; at < regex.size() && regex[at] != ')'; ++at) {
      const char c = regex[at];
      if (c == '[' || c == ']') in_class = c == '[';
      if (!is_letter(c)) {
        made += c;
        continue;
      }
      const char low = static_cast<char>(std::tolower(c));
      const char high = static_cast<char>(std::toupper(c));
      made +=
          in_class ? std::string{low, high} : std::string{'[', low, high, ']'};
    }
    made += ')';
  }
  return made;
}

// One form of the ways to write an expression: control characters as escapes,
// no groups without case, no possessive quantifiers, which llama.cpp reads as
// greedy ones, and no last "|\s+", since what no expression takes is a word,
// too.
std::string canonical(const std::string& regex) {
  std::string escaped;
  for (const char c : without_case(regex)) {
    const char* escape = c == '\r'   ? "\\r"
                         : c == '\n' ? "\\n"
                         : c == '\t' ? "\\t"
                                     : nullptr;
    const bool quantifier = !escaped.empty() &&
                            (escaped.back() == '+' || escaped.back() == '?' ||
                             escaped.back() == '*') &&
                            escaped.size() > 1 &&
                            escaped[escaped.size() - 2] != '\\' &&
                            escaped[escaped.size() - 2] != '[';
    if (escape != nullptr)
      escaped += escape;
    else if (c != '+' || !quantifier)
      escaped += c;
  }
  constexpr std::string_view kSpaces = "\\s+(?!\\S)|\\s+";
  if (escaped.ends_with(kSpaces)) escaped.resize(escaped.size() - 4);
  return escaped;
}

Regexes canonical(Regexes regexes) {
  for (std::string& regex : regexes) regex = canonical(regex);
  return regexes;
}

// What one step of a pre_tokenizer cuts at; nullopt if it is not known.
std::optional<Regexes> step_of(const Json& step) {
  const std::string type = step.value("type", "");
  if (type == "ByteLevel") {
    return step.value("use_regex", true) ? Regexes{std::string(kGpt2)}
                                         : Regexes{};
  }
  if (type == "Digits" && step.value("individual_digits", false))
    return Regexes{"\\p{N}"};
  if (type == "Split") {
    const std::string behavior = step.value("behavior", "");
    const bool invert = step.value("invert", false);
    const Json pattern = step.value("pattern", Json::object());
    if (!pattern.is_object() || !pattern.contains("Regex") ||
        !pattern["Regex"].is_string())
      return std::nullopt;
    const auto regex = pattern["Regex"].get<std::string>();
    // What is removed is what lies between the words: nothing, where the last
    // choice is any space.
    const bool all =
        behavior == "Removed" && invert && regex.ends_with("\\s+(?!\\S)|\\s+");
    if (!all && !(behavior == "Isolated" && !invert)) return std::nullopt;
    return Regexes{canonical(regex)};
  }
  return std::nullopt;
}

// The same of all steps; the last one has to be ByteLevel.
std::optional<Regexes> regexes_of(const Json& pre_tokenizer) {
  if (!pre_tokenizer.is_object()) return std::nullopt;
  const bool many = pre_tokenizer.value("type", "") == "Sequence";
  const Json steps = many ? pre_tokenizer.value("pretokenizers", Json::array())
                          : Json::array({pre_tokenizer});
  Regexes all;
  std::string last;
  for (const Json& step : steps) {
    // After ByteLevel spaces are no spaces any more.
    if (!step.is_object() || last == "ByteLevel") return std::nullopt;
    const std::optional<Regexes> part = step_of(step);
    if (!part) return std::nullopt;
    all.insert(all.end(), part->begin(), part->end());
    last = step.value("type", "");
  }
  if (last != "ByteLevel") return std::nullopt;
  return all;
}

std::string plain(std::string_view name) {
  std::string letters;
  for (const char c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return letters;
}

// How much of a name a hint has: "roberta" of roberta-bpe.
size_t likeness(const std::string& name, const PreHints& hints) {
  const std::string whole = plain(name);
  const std::string stem = plain(name.substr(0, name.find('-')));
  size_t most = 0;
  for (const std::string& hint : hints) {
    const std::string said = plain(hint);
    if (said.empty()) continue;
    if (said.starts_with(whole)) most = std::max(most, 2 * whole.size());
    if (whole.starts_with(said)) most = std::max(most, 2 * said.size());
    if (said.starts_with(stem)) most = std::max(most, stem.size());
  }
  return most;
}

}  // namespace

const std::vector<GgufPre>& gguf_pres() {
  static const std::vector<GgufPre> all = [] {
    std::vector<GgufPre> rows;
    const Json table = Json::parse(embedded_text("gguf_pre"));
    for (const Json& row : table.at("rows")) {
      GgufPre pre;
      pre.names = row.at("names").get<Regexes>();
      pre.written = row.at("written").get<Regexes>();
      pre.regexes = row.at("regexes").get<Regexes>();
      pre.original = row.value("original", Regexes{});
      pre.ignore_merges = row.value("ignore_merges", false);
      pre.add_bos = row.value("add_bos", false);
      pre.add_sep = row.value("add_sep", false);
      pre.raw = row.value("raw", false);
      pre.escape_whitespaces = row.value("escape_whitespaces", false);
      rows.push_back(std::move(pre));
    }
    return rows;
  }();
  return all;
}

const GgufPre* gguf_pre_named(std::string_view name) {
  for (const GgufPre& pre : gguf_pres())
    if (std::ranges::count(pre.names, name) > 0) return &pre;
  return nullptr;
}

std::vector<PreName> gguf_pres_of(const Json& pre_tokenizer, bool roberta,
                                  const PreHints& hints) {
  const std::optional<Regexes> regexes = regexes_of(pre_tokenizer);
  if (!regexes) return {};
  const Regexes wanted = canonical(*regexes);
  if (wanted.empty()) return {};  // a text is one word
  struct Found {
    PreName name;
    size_t like;
    bool kind;
  };
  std::vector<Found> found;
  for (const GgufPre& pre : gguf_pres()) {
    if (pre.raw ||
        (canonical(pre.regexes) != wanted && canonical(pre.original) != wanted))
      continue;
    for (const std::string& name : pre.written) {
      Found one;
      one.name = PreName{name, &pre};
      one.like = likeness(name, hints);
      one.kind = pre.add_sep == roberta;
      found.push_back(std::move(one));
    }
  }
  std::ranges::stable_sort(found, [](const Found& a, const Found& b) {
    return std::pair(a.kind, a.like) > std::pair(b.kind, b.like);
  });
  std::vector<PreName> names;
  names.reserve(found.size());
  for (Found& one : found) names.push_back(std::move(one.name));
  return names;
}

Json pre_tokenizer_of(const GgufPre& pre) {
  const Regexes& regexes = pre.original.empty() ? pre.regexes : pre.original;
  Json steps = Json::array();
  bool built_in = false;
  for (const std::string& regex : regexes) {
    built_in = regex == kGpt2 && &regex == &regexes.back();
    if (built_in) break;
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", regex}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  steps.push_back({{"type", "ByteLevel"},
                   {"add_prefix_space", false},
                   {"trim_offsets", true},
                   {"use_regex", built_in}});
  if (steps.size() == 1) return steps[0];
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

}  // namespace ckpt::families
