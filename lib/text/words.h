// SPDX-License-Identifier: Apache-2.0
// Lists of words, each list one text in which blanks separate them: "r alpha".
// As an array of strings, a long list has a line for each.
#pragma once

#include <string>
#include <string_view>

namespace ckpt::text {

constexpr std::string_view trimmed(std::string_view text,
                                   std::string_view blanks = " \t\r\n") {
  const size_t begin = text.find_first_not_of(blanks);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) + 1 - begin);
}

// ASCII's letters; other bytes stay.
inline std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

// Calls `ask` with one word after the other until it returns true.
template <class Ask>
constexpr bool any_word(std::string_view words, Ask ask) {
  for (size_t at = 0; at < words.size();) {
    const size_t end = words.substr(at).find(' ');
    const size_t size = end == words.npos ? words.size() - at : end;
    if (size != 0 && ask(words.substr(at, size))) return true;
    at += size + 1;
  }
  return false;
}

constexpr bool has_word(std::string_view words, std::string_view word) {
  return any_word(words, [&](std::string_view one) { return one == word; });
}
constexpr bool starts_with_any(std::string_view text, std::string_view words) {
  return any_word(words,
                  [&](std::string_view one) { return text.starts_with(one); });
}
constexpr bool ends_with_any(std::string_view text, std::string_view words) {
  return any_word(words,
                  [&](std::string_view one) { return text.ends_with(one); });
}

}  // namespace ckpt::text
