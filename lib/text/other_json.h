// SPDX-License-Identifier: Apache-2.0
// JSON of others that a command looks into but does not depend on: a text that
// can't be read is no error (text/json.h is where it is one).
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "lib/text/scan.h"

namespace ckpt::text {

// True if brackets outside of strings nest deeper than kMaxJsonDepth. What
// nlohmann_json parses it also copies, compares and prints, each by recursion:
// some hundred KB of brackets are more than a stack holds.
inline bool nests_too_deep(std::string_view text) {
  size_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth) return true;
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return false;
}

// Discarded if the text is not JSON or nests too deep.
template <typename Json = nlohmann::json>
Json parse_or_discard(std::string_view text) {
  if (nests_too_deep(text)) return Json(Json::value_t::discarded);
  return Json::parse(text, nullptr, false);
}

}  // namespace ckpt::text
