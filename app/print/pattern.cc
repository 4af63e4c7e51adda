// SPDX-License-Identifier: Apache-2.0
#include "app/print/pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace ckpt::app {
namespace {

// The value of a component that is a number of up to nine digits.
std::optional<uint32_t> number_of(std::string_view part) {
  if (part.empty() || part.size() > 9) return std::nullopt;
  uint32_t value = 0;
  for (const char c : part) {
    if (c < '0' || c > '9') return std::nullopt;
    value = 10 * value + static_cast<uint32_t>(c - '0');
  }
  return value;
}

// What precedes the number in a component: nothing in "12"; in "weight12" the
// kind of parameter, as Transformer Engine's grouped experts number theirs. The
// 1 of "w1" or "fc1" is part of a name.
std::string_view stem_of(std::string_view part) {
  for (const std::string_view stem : {"weight", "bias"})
    if (part.starts_with(stem)) return stem;
  return {};
}

// Calls `take` with each component of a dotted name.
template <class Take>
void each_part(std::string_view name, Take take) {
  while (true) {
    const size_t dot = name.find('.');
    take(name.substr(0, dot));
    if (dot == name.npos) return;
    name.remove_prefix(dot + 1);
  }
}

// A name taken apart: "layers.12.w1" is "layers.#.w1" and {12}. Its memory is
// reused for one name after another: there are hundreds of thousands.
struct Parts {
  std::string pattern;
  std::vector<uint32_t> numbers;

  void take(std::string_view name);
};

void Parts::take(std::string_view name) {
  pattern.clear();
  numbers.clear();
  const char* before = "";
  each_part(name, [&](std::string_view part) {
    pattern += std::exchange(before, ".");
    const std::string_view stem = stem_of(part);
    if (const auto number = number_of(part.substr(stem.size()))) {
      pattern += stem;
      pattern += '#';
      numbers.push_back(*number);
    } else {
      pattern += part;
    }
  });
}

// Tensors shown in one row. `slots` are the values of each number in the name,
// sorted and unique once `finish` was called.
struct Group {
  std::string pattern;
  PatternRow row;
  std::vector<std::vector<uint32_t>> slots;

  void add(const Tensor& tensor, const std::vector<uint32_t>& numbers);
  void add(const std::vector<uint32_t>& numbers);
  void finish();
};

void Group::add(const Tensor& tensor, const std::vector<uint32_t>& numbers) {
  ++row.count;
  row.bytes = checked_add(row.bytes, byte_size(tensor)).value_or(UINT64_MAX);
  row.pieces += tensor.pieces.size();
  add(numbers);
}

void Group::add(const std::vector<uint32_t>& numbers) {
  slots.resize(std::max(slots.size(), numbers.size()));
  for (size_t i = 0; i < numbers.size(); ++i)
    if (slots[i].empty() || slots[i].back() != numbers[i])
      slots[i].push_back(numbers[i]);
}

void Group::finish() {
  for (std::vector<uint32_t>& slot : slots) {
    std::ranges::sort(slot);
    slot.erase(std::unique(slot.begin(), slot.end()), slot.end());
  }
}

// What tensors of one group have in common.
template <class Text, class Sizes>
using Traits =
    std::tuple<Text, DType, Sizes, TpRule::State, uint32_t, uint32_t>;
using Key = Traits<std::string, Shape>;
using KeyView = Traits<const std::string&, const Shape&>;

KeyView key_of(const std::string& pattern, const Tensor& tensor) {
  return {pattern,         tensor.dtype,  tensor.shape,
          tensor.tp.state, tensor.tp.dim, tensor.tp.groups};
}

// {0, 1, 2, 5} -> "0-2,5"; if there are very many runs, the first ones and the
// last.
std::string ranges_text(const std::vector<uint32_t>& numbers) {
  constexpr size_t kMostRuns = 8;
  constexpr size_t kFirstRuns = 4;
  std::vector<std::string> runs;
  for (auto it = numbers.begin(); it != numbers.end();) {
    const uint32_t first = *it;
    uint32_t last = first;
    while (++it != numbers.end() && *it == last + 1) ++last;
    std::string& run = runs.emplace_back(fmt::format_int(first).str());
    if (last != first) run += '-' + fmt::format_int(last).str();
  }
  if (runs.size() > kMostRuns) {
    runs[kFirstRuns] = "...";
    runs.erase(runs.begin() + kFirstRuns + 1, runs.end() - 1);
  }
  return fmt::format("{}", fmt::join(runs, ","));
}

// The pattern with a number where there is only one, and with the set of
// numbers if `spell_out`.
std::string row_name(const Group& group, bool spell_out) {
  std::string text;
  size_t slot = 0;
  each_part(group.pattern, [&](std::string_view part) {
    if (!text.empty() || slot != 0) text += '.';
    const std::string_view stem = stem_of(part);
    text += stem;
    part.remove_prefix(stem.size());
    if (part != "#" || slot >= group.slots.size()) {
      text += part;
      return;
    }
    const std::vector<uint32_t>& numbers = group.slots[slot++];
    if (numbers.size() == 1) {
      text += fmt::format_int(numbers[0]).str();
    } else if (spell_out) {
      text += '{' + ranges_text(numbers) + '}';
    } else {
      text += '#';
    }
  });
  return text;
}

}  // namespace

std::string pattern_of(std::string_view name) {
  Parts parts;
  parts.take(name);
  return std::move(parts.pattern);
}

std::string spelled_name(const std::vector<std::string_view>& names) {
  if (names.size() == 1) return std::string(names[0]);
  Group group;
  Parts parts;
  for (const std::string_view name : names) {
    parts.take(name);
    group.add(parts.numbers);
  }
  group.pattern = parts.pattern;
  group.finish();
  return row_name(group, true);
}

std::vector<PatternRow> pattern_rows(const Catalog& catalog, Kind kind) {
  std::vector<Group> groups;
  std::map<Key, size_t, std::less<>> index;
  std::unordered_map<std::string, uint32_t> rows_of_pattern;
  Parts parts;
  for (const Tensor& tensor : catalog.tensors) {
    if (tensor.kind != kind) continue;
    parts.take(tensor.name);
    auto at = index.find(key_of(parts.pattern, tensor));
    if (at == index.end()) {
      at = index.emplace(key_of(parts.pattern, tensor), groups.size()).first;
      ++rows_of_pattern[parts.pattern];
      Group& group = groups.emplace_back();
      group.pattern = parts.pattern;
      group.row.first = &tensor;
    }
    groups[at->second].add(tensor, parts.numbers);
    groups[at->second].row.members.push_back(
        static_cast<uint32_t>(&tensor - catalog.tensors.data()));
  }
  std::vector<PatternRow> rows;
  for (Group& group : groups) {
    group.finish();
    const bool alone = rows_of_pattern[group.pattern] == 1;
    group.row.name =
        group.row.count == 1 ? group.row.first->name : row_name(group, !alone);
    rows.push_back(std::move(group.row));
  }
  return rows;
}

std::vector<const Tensor*> tensors_like(const Catalog& catalog,
                                        const Tensor& first) {
  const std::string pattern = pattern_of(first.name);
  const KeyView key = key_of(pattern, first);
  std::vector<const Tensor*> like;
  Parts parts;
  for (const Tensor& tensor : catalog.tensors) {
    if (tensor.kind != first.kind) continue;
    parts.take(tensor.name);
    if (key_of(parts.pattern, tensor) == key) like.push_back(&tensor);
  }
  return like;
}

std::vector<PatternRow> state_rows(const Catalog& catalog) {
  const auto is_state = [](const Tensor& t) { return t.kind == Kind::optim; };
  if (std::ranges::none_of(catalog.tensors, is_state)) return {};
  std::unordered_map<std::string_view, const Tensor*> parameters;
  for (const Tensor& tensor : catalog.tensors)
    if (tensor.kind == Kind::model) parameters[tensor.name] = &tensor;
  std::vector<PatternRow> rows;
  std::map<std::pair<bool, Key>, size_t> index;
  for (const Tensor& tensor : catalog.tensors) {
    if (!is_state(tensor)) continue;
    const auto parameter = parameters.find(tensor.param);
    if (tensor.state.empty() || parameter == parameters.end()) return {};
    const Tensor& owner = *parameter->second;
    const bool like = tensor.shape == owner.shape && tensor.tp == owner.tp;
    Key key = key_of(tensor.state, tensor);
    if (like) key = Key(tensor.state, tensor.dtype, {}, {}, {}, {});
    const auto [at, added] =
        index.try_emplace({like, std::move(key)}, rows.size());
    if (added) {
      PatternRow& row = rows.emplace_back();
      row.name = "*." + tensor.state;
      row.first = &tensor;
      row.like_parameter = like;
    }
    PatternRow& row = rows[at->second];
    ++row.count;
    row.pieces += tensor.pieces.size();
    row.bytes = checked_add(row.bytes, byte_size(tensor)).value_or(UINT64_MAX);
  }
  return rows;
}

std::string split_text(const TpRule& rule) {
  switch (rule.state) {
    case TpRule::State::kUnknown:
      return "";
    case TpRule::State::kReplicated:
      return "replicated";
    case TpRule::State::kSplit:
      break;
  }
  if (rule.groups == 1) return fmt::format("tp dim {}", rule.dim);
  return fmt::format("tp dim {} in {} groups", rule.dim, rule.groups);
}

}  // namespace ckpt::app
