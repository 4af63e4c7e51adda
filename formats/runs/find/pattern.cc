// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/find/pattern.h"

#include <algorithm>

#include "lib/text/number.h"

namespace ckpt::runs {
namespace {

using text::is_digit;

bool take(std::string_view pattern, std::string_view name, Numbers& numbers) {
  while (!pattern.empty()) {
    if (pattern[0] != '{') {
      if (name.empty() || name[0] != pattern[0]) return false;
      pattern.remove_prefix(1);
      name.remove_prefix(1);
      continue;
    }
    const size_t close = pattern.find('}');
    std::string_view what = pattern.substr(1, close - 1);
    pattern.remove_prefix(close + 1);
    if (what == "*") {
      for (size_t skip = 0; skip <= name.size(); ++skip) {
        Numbers below = numbers;
        if (!take(pattern, name.substr(skip), below)) continue;
        numbers = std::move(below);
        return true;
      }
      return false;
    }
    uint64_t value = 0;
    if (what[0] == '_') {
      what.remove_prefix(1);
      if (name.starts_with('_') && name.size() > 1 && is_digit(name[1])) {
        name.remove_prefix(1);
        const auto number = text::take_number(name);
        if (!number || *number == 0) return false;
        value = *number;
      }
    } else {
      const auto number = text::take_number(name);
      if (!number) return false;
      value = *number;
    }
    const auto [known, fresh] = numbers.emplace(what, value);
    if (!fresh && known->second != value) return false;
  }
  return name.empty();
}

}  // namespace

std::optional<Numbers> match(std::string_view pattern, std::string_view name) {
  Numbers numbers;
  if (!take(pattern, name, numbers)) return std::nullopt;
  return numbers;
}

std::string fill(std::string_view pattern, const Numbers& numbers) {
  std::string name;
  while (!pattern.empty()) {
    if (pattern[0] != '{') {
      name += pattern[0];
      pattern.remove_prefix(1);
      continue;
    }
    const size_t close = pattern.find('}');
    std::string_view what = pattern.substr(1, close - 1);
    const bool optional = what[0] == '_';
    const auto known = numbers.find(optional ? what.substr(1) : what);
    if (known == numbers.end())
      name += pattern.substr(0, close + 1);
    else if (!optional)
      name += std::to_string(known->second);
    else if (known->second != 0)
      name += "_" + std::to_string(known->second);
    pattern.remove_prefix(close + 1);
  }
  return name;
}

std::string as_glob(std::string_view pattern) {
  pattern = pattern.substr(0, pattern.find('|'));
  std::string name;
  while (!pattern.empty()) {
    const size_t open = std::min(pattern.find('{'), pattern.size());
    name += pattern.substr(0, open);
    pattern.remove_prefix(open);
    if (pattern.empty()) break;
    const bool optional = pattern.size() > 1 && pattern[1] == '_';
    if (!optional) name += '*';
    pattern.remove_prefix(std::min(pattern.find('}'), pattern.size() - 1) + 1);
  }
  return name;
}

bool has(std::string_view pattern, std::string_view number) {
  return pattern.find("{" + std::string(number) + "}") != pattern.npos ||
         pattern.find("{_" + std::string(number) + "}") != pattern.npos;
}

std::optional<uint64_t> whole_number(std::string_view text) {
  return text::number(text);
}

}  // namespace ckpt::runs
