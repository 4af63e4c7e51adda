// SPDX-License-Identifier: Apache-2.0
#include "lib/text/glob.h"

#include <algorithm>
#include <utility>

#include "ckpt/error.h"
#include "lib/text/format.h"
#include "lib/text/utf8.h"

namespace ckpt::text {
namespace {

constexpr size_t kMaxAlternatives = 4096;
constexpr size_t kNone = std::string_view::npos;

// A character, or one byte where the text is not UTF-8.
size_t char_length(std::string_view text) {
  return std::max<size_t>(first_char(text).length, 1);
}

// The end of the class that begins at `open`, past its bracket; kNone if it
// is not closed. A ']' right after "[" or "[!" is a member.
size_t class_end(std::string_view pattern, size_t open) {
  size_t at = open + 1;
  if (at < pattern.size() && (pattern[at] == '!' || pattern[at] == '^')) ++at;
  const size_t close = pattern.find(']', at + 1);
  return close == kNone ? kNone : close + 1;
}

// Steps over one element of a pattern: an escape, a class or a character.
size_t next_element(std::string_view pattern, size_t at) {
  if (pattern[at] == '\\') return std::min(at + 2, pattern.size());
  if (pattern[at] == '[') return class_end(pattern, at);
  return at + 1;
}

struct Braces {
  size_t open = kNone;
  size_t end = kNone;                   // past the closing brace
  std::vector<std::string_view> parts;  // between the commas
};

// The first {…} of a pattern; nested ones stay in its parts.
Braces find_braces(std::string_view pattern) {
  Braces found;
  size_t depth = 0;
  size_t part = 0;
  for (size_t at = 0; at < pattern.size(); at = next_element(pattern, at)) {
    const char c = pattern[at];
    if (c == '{' && depth++ == 0) {
      found.open = at;
      part = at + 1;
    }
    if (depth == 0 || (c != ',' && c != '}')) continue;
    if (depth == 1) {
      found.parts.push_back(pattern.substr(part, at - part));
      part = at + 1;
    }
    if (c == '}' && --depth == 0) {
      found.end = at + 1;
      break;
    }
  }
  return found;
}

void check_classes(std::string_view pattern) {
  for (size_t at = 0; at < pattern.size();) {
    at = next_element(pattern, at);
    if (at == kNone)
      throw usage_error({}, "pattern \"{}\": '[' is not closed",
                        printable(pattern))
          .with_hint("write \\[ for a bracket in a name");
  }
}

// All alternatives, without recursion: braces are expanded from left to right.
std::vector<std::string> expand(const std::string& pattern) {
  std::vector<std::string> done;
  std::vector<std::string> open = {pattern};
  for (size_t steps = 0; !open.empty(); ++steps) {
    if (steps > 2 * kMaxAlternatives || open.size() > kMaxAlternatives)
      throw usage_error({}, "pattern \"{}\" has more than {} alternatives",
                        printable(pattern), kMaxAlternatives);
    const std::string current = std::move(open.back());
    open.pop_back();
    const Braces braces = find_braces(current);
    if (braces.open == kNone) {
      done.push_back(current);
      continue;
    }
    if (braces.end == kNone)
      throw usage_error({}, "pattern \"{}\": '{{' is not closed",
                        printable(pattern))
          .with_hint("write \\{ for a brace in a name");
    for (const std::string_view part : braces.parts)
      open.push_back(current.substr(0, braces.open) + std::string(part) +
                     current.substr(braces.end));
  }
  return done;
}

// True if the class pattern[at, end) contains the first character of `text`.
bool class_holds(std::string_view members, std::string_view text) {
  const Utf8Char wanted = first_char(text);
  const char32_t code =
      wanted.length ? wanted.code : static_cast<uint8_t>(text[0]) | 0x110000u;
  members = members.substr(1, members.size() - 2);
  const bool negated = members[0] == '!' || members[0] == '^';
  if (negated) members.remove_prefix(1);
  const auto take = [&] {
    const char32_t c = first_char(members).code;
    members.remove_prefix(char_length(members));
    return c;
  };
  bool held = false;
  while (!members.empty()) {
    const char32_t low = take();
    char32_t high = low;
    if (members.size() > 1 && members[0] == '-') {
      members.remove_prefix(1);
      high = take();
    }
    held |= low <= code && code <= high;
  }
  return held != negated;
}

// Matches one element of the pattern other than '*' against the front of
// `text`: returns how many bytes match, or 0.
size_t match_one(std::string_view pattern, size_t at, size_t end,
                 std::string_view text) {
  if (text.empty()) return 0;
  if (pattern[at] == '?') return char_length(text);
  if (pattern[at] == '[')
    return class_holds(pattern.substr(at, end - at), text) ? char_length(text)
                                                           : 0;
  const bool escape = pattern[at] == '\\' && at + 1 < pattern.size();
  return text[0] == pattern[at + escape] ? 1 : 0;
}

// On a mismatch only the last star has to grow: what an earlier one could give
// up, the last one can take. So the work is at most name x pattern.
bool match(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0;
  size_t star = kNone, resume = 0;  // after the last star; where it ends
  while (t < text.size() || p < pattern.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = ++p;
      resume = t;
      continue;
    }
    if (p < pattern.size()) {
      const size_t end = next_element(pattern, p);
      if (const size_t length = match_one(pattern, p, end, text.substr(t))) {
        p = end;
        t += length;
        continue;
      }
    }
    if (star == kNone || resume == text.size()) return false;
    resume += char_length(text.substr(resume));
    p = star;
    t = resume;
  }
  return true;
}

}  // namespace

Glob::Glob(std::string pattern) : pattern_(std::move(pattern)) {
  check_classes(pattern_);
  alternatives_ = expand(pattern_);
}

bool Glob::matches(std::string_view name) const {
  return std::ranges::any_of(alternatives_, [&](const std::string& pattern) {
    return match(pattern, name);
  });
}

}  // namespace ckpt::text
