// SPDX-License-Identifier: Apache-2.0
#include "api/keep/words.h"

#include <utility>

#include "ckpt/error.h"

namespace ckpt::library {

std::vector<std::string> command_words(std::string_view line,
                                       std::string_view option) {
  std::vector<std::string> words;
  std::string word;
  bool in_word = false;
  char quote = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    const bool more = i + 1 < line.size();
    if (quote == 0 && (c == ' ' || c == '\t' || c == '\n')) {
      if (in_word) words.push_back(std::move(word));
      word.clear();
      in_word = false;
      continue;
    }
    in_word = true;
    if (c == quote)
      quote = 0;
    else if (quote == 0 && (c == '\'' || c == '"'))
      quote = c;
    else if (c == '\\' && more &&
             (quote == 0 ||
              (quote == '"' && (line[i + 1] == '"' || line[i + 1] == '\\'))))
      word += line[++i];
    else
      word += c;
  }
  if (quote != 0)
    throw usage_error({}, "{}: a {} has no end", option, quote)
        .with_hint("it is split into words as a shell does it");
  if (in_word) words.push_back(std::move(word));
  if (words.empty()) throw usage_error({}, "{}: the command is empty", option);
  return words;
}

}  // namespace ckpt::library
