// SPDX-License-Identifier: Apache-2.0
#include "lib/text/shell.h"

#include <algorithm>

#include "lib/text/format.h"

namespace ckpt::text {
namespace {

bool is_plain(char c) {
  constexpr std::string_view kMarks = "-_.,=+/:@%";
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
         (c >= 'A' && c <= 'Z') || kMarks.find(c) != kMarks.npos;
}

std::string with_escapes(std::string_view word) {
  std::string text;
  for (const char c : word) {
    if (c == '\'' || c == '\\') text += '\\';
    text += c;
  }
  return "$'" + printable(text) + "'";
}

std::string in_quotes(std::string_view word) {
  std::string text;
  for (const char c : word)
    text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return "'" + text + "'";
}

}  // namespace

std::string shell_word(std::string_view word) {
  if (printable(word) != word) return with_escapes(word);
  // zsh takes =NAME for the path of a command.
  const bool plain =
      !word.empty() && word[0] != '=' && std::ranges::all_of(word, is_plain);
  return plain ? std::string(word) : in_quotes(word);
}

std::string shell_path(std::string_view path) {
  const bool reads_otherwise = path.starts_with('-') || path.starts_with('@');
  return shell_word((reads_otherwise ? "./" : "") + std::string(path));
}

}  // namespace ckpt::text
