#include "app/pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <unordered_map>

namespace ckpt::app {
namespace {

bool is_number(std::string_view part) {
  return !part.empty() && part.size() <= 9 &&
         std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
}

// Calls `take` with each component of a dotted name.
void each_part(std::string_view name,
               const std::function<void(std::string_view)>& take) {
  while (true) {
    const size_t dot = name.find('.');
    take(name.substr(0, dot));
    if (dot == name.npos) return;
    name.remove_prefix(dot + 1);
  }
}

std::vector<uint32_t> numbers_of(std::string_view name) {
  std::vector<uint32_t> numbers;
  each_part(name, [&](std::string_view part) {
    uint32_t value = 0;
    if (!is_number(part)) return;
    std::from_chars(part.data(), part.data() + part.size(), value);
    numbers.push_back(value);
  });
  return numbers;
}

// Tensors that one row stands for. `slots` are the values that each number
// in the name takes.
struct Group {
  std::string pattern;
  PatternRow row;
  std::vector<std::set<uint32_t>> slots;
};

std::string group_key(const std::string& pattern, const Tensor& tensor) {
  return fmt::format("{}\n{} {} {}.{}.{}", pattern, name(tensor.dtype),
                     to_string(tensor.shape), static_cast<int>(tensor.tp.state),
                     tensor.tp.dim, tensor.tp.groups);
}

// {0, 1, 2, 5} -> "0-2,5"
std::string ranges_text(const std::set<uint32_t>& numbers) {
  std::string text;
  for (auto it = numbers.begin(); it != numbers.end();) {
    const uint32_t first = *it;
    uint32_t last = first;
    while (++it != numbers.end() && *it == last + 1) ++last;
    if (!text.empty()) text += ',';
    text += fmt::format_int(first).str();
    if (last != first) text += '-' + fmt::format_int(last).str();
  }
  return text;
}

// The pattern with a number where there is only one, and with the set of
// numbers if `spell_out`.
std::string row_name(const Group& group, bool spell_out) {
  std::string text;
  size_t slot = 0;
  each_part(group.pattern, [&](std::string_view part) {
    if (!text.empty() || slot != 0) text += '.';
    if (part != "#" || slot >= group.slots.size()) {
      text += part;
      return;
    }
    const std::set<uint32_t>& numbers = group.slots[slot++];
    if (numbers.size() == 1) {
      text += fmt::format_int(*numbers.begin()).str();
    } else if (spell_out) {
      text += '{' + ranges_text(numbers) + '}';
    } else {
      text += '#';
    }
  });
  return text;
}

void add(Group& group, const Tensor& tensor) {
  ++group.row.count;
  group.row.bytes =
      checked_add(group.row.bytes, byte_size(tensor)).value_or(UINT64_MAX);
  group.row.pieces += tensor.pieces.size();
  const std::vector<uint32_t> numbers = numbers_of(tensor.name);
  group.slots.resize(std::max(group.slots.size(), numbers.size()));
  for (size_t i = 0; i < numbers.size(); ++i) group.slots[i].insert(numbers[i]);
}

}  // namespace

std::string pattern_of(std::string_view name) {
  std::string pattern;
  bool first = true;
  each_part(name, [&](std::string_view part) {
    if (!first) pattern += '.';
    first = false;
    pattern += is_number(part) ? std::string_view("#") : part;
  });
  return pattern;
}

std::vector<PatternRow> pattern_rows(const Catalog& catalog, Kind kind) {
  std::vector<Group> groups;
  std::unordered_map<std::string, size_t> index;
  std::unordered_map<std::string, uint32_t> rows_of_pattern;
  for (const Tensor& tensor : catalog.tensors) {
    if (tensor.kind != kind) continue;
    std::string pattern = pattern_of(tensor.name);
    const auto [at, added] =
        index.try_emplace(group_key(pattern, tensor), groups.size());
    if (added) {
      ++rows_of_pattern[pattern];
      Group& group = groups.emplace_back();
      group.pattern = std::move(pattern);
      group.row.first = &tensor;
    }
    add(groups[at->second], tensor);
  }
  std::vector<PatternRow> rows;
  for (Group& group : groups) {
    const bool alone = rows_of_pattern[group.pattern] == 1;
    group.row.name =
        group.row.count == 1 ? group.row.first->name : row_name(group, !alone);
    rows.push_back(std::move(group.row));
  }
  return rows;
}

std::vector<PatternRow> state_rows(const Catalog& catalog) {
  std::unordered_map<std::string_view, const Tensor*> parameters;
  for (const Tensor& tensor : catalog.tensors)
    if (tensor.kind == Kind::model) parameters[tensor.name] = &tensor;
  std::vector<PatternRow> rows;
  std::map<std::string, size_t> index;
  for (const Tensor& tensor : catalog.tensors) {
    if (tensor.kind != Kind::optim) continue;
    const auto parameter = parameters.find(tensor.param);
    if (tensor.state.empty() || parameter == parameters.end()) return {};
    const Tensor& owner = *parameter->second;
    const bool like = tensor.shape == owner.shape && tensor.tp == owner.tp;
    const std::string key =
        like ? fmt::format("{}\n{}", tensor.state, name(tensor.dtype))
             : group_key(tensor.state, tensor) + "\n";
    const auto [at, added] = index.try_emplace(key, rows.size());
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
