// SPDX-License-Identifier: Apache-2.0
#include "api/check/rename_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "api/check/read_all.h"
#include "api/edit/rename.h"
#include "ckpt/error.h"

namespace ckpt::library {
namespace {

// "layers.*.w1" and "12" of "layers.12.w1"
struct Starred {
  std::string pattern;
  std::string numbers;
};

Starred starred(const std::string& name) {
  Starred made;
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('.', at), name.size());
    const std::string part = name.substr(at, end - at);
    const bool number =
        !part.empty() && part.find_first_not_of("0123456789") == part.npos;
    if (number) made.numbers += part + ".";
    made.pattern += (at == 0 ? "" : ".") + (number ? "*" : part);
    at = end + 1;
  }
  return made;
}

// The tensors of the model whose names the other has not got.
std::vector<Tensor> lonely(const Catalog& catalog, const Catalog& other) {
  std::set<std::string_view> names;
  for (const Tensor& tensor : other.tensors) names.insert(tensor.name);
  std::vector<Tensor> found;
  for (const Tensor& tensor : catalog.tensors)
    if (!names.contains(tensor.name) && tensor.kind == Kind::model &&
        tensor.name.find('*') == tensor.name.npos)  // no rule can say it
      found.push_back(tensor);
  return found;
}

void keep_shapes_of(const std::vector<Tensor>& others,
                    std::vector<Tensor>& tensors) {
  std::set<std::string> shapes;
  for (const Tensor& other : others) shapes.insert(to_string(other.shape));
  std::erase_if(tensors, [&](const Tensor& tensor) {
    return !shapes.contains(to_string(tensor.shape));
  });
}

// The tensors of one side that the other has not got, and what is known of
// their values.
struct Side {
  Side(const Catalog& whole, std::vector<Tensor> tensors) : catalog(whole) {
    catalog.tensors = std::move(tensors);
    for (const Tensor& tensor : catalog.tensors)
      starred.push_back(library::starred(tensor.name));
  }
  size_t size() const { return catalog.tensors.size(); }
  const std::string& name(size_t i) const { return catalog.tensors[i].name; }

  Catalog catalog;
  std::vector<Starred> starred;  // of each
  Reading reading;
};

// Tensors of both sides with one content.
struct EqualTensors {
  std::vector<size_t> a, b;
};

// What is known of the contents: which tensors of the two are equal, bit for
// bit.
class Equals {
  using NumberOf = std::pair<const std::string_view, size_t>;

 public:
  Equals(const Side& a, const Side& b) : of_a_(a.size()), of_b_(b.size()) {
    using Key = std::tuple<std::string, DType, uint64_t, uint64_t>;
    std::map<Key, size_t> numbers;
    const auto add = [&](const Side& side,
                         std::vector<size_t> EqualTensors::*list,
                         std::vector<size_t>& of) {
      for (size_t i = 0; i < side.size(); ++i) {
        const Tensor& tensor = side.catalog.tensors[i];
        const Digest& sum = side.reading.digests[i];
        const auto [at, fresh] = numbers.try_emplace(
            Key{to_string(tensor.shape), tensor.dtype, sum.d0, sum.d1},
            groups_.size());
        if (fresh) groups_.emplace_back();
        of[i] = at->second;
        (groups_[at->second].*list).push_back(i);
      }
    };
    add(a, &EqualTensors::a, of_a_);
    add(b, &EqualTensors::b, of_b_);
    partners_.resize(a.size());
    for (const EqualTensors& group : groups_)
      if (group.a.size() == 1 && group.b.size() == 1)
        partners_[group.a[0]] = group.b[0];
    for (size_t i = 0; i < a.size(); ++i)
      if (partners_[i] &&
          a.starred[i].numbers != b.starred[*partners_[i]].numbers)
        return;
    for (const EqualTensors& group : groups_) pair_by_numbers(group, a, b);
  }

  const std::vector<EqualTensors>& groups() const { return groups_; }
  const EqualTensors& of_a(size_t i) const { return groups_[of_a_[i]]; }
  bool has_equal_a(size_t i) const { return !of_a(i).b.empty(); }
  bool has_equal_b(size_t i) const { return !groups_[of_b_[i]].a.empty(); }
  bool equal(size_t a, size_t b) const { return of_a_[a] == of_b_[b]; }
  // The only one of B that is, if it equals no other of A; of several, the one
  // with the same numbers in its name, where all have numbers of their own and
  // no other tensor got new ones.
  std::optional<size_t> partner(size_t a) const { return partners_[a]; }
  // True unless one of the two has an equal tensor, and it is another.
  bool allow(size_t a, size_t b) const {
    return equal(a, b) || !(has_equal_a(a) || has_equal_b(b));
  }

 private:
  void pair_by_numbers(const EqualTensors& group, const Side& a,
                       const Side& b) {
    if (group.a.size() < 2 || group.a.size() != group.b.size()) return;
    std::map<std::string_view, size_t> left, right;
    for (const size_t i : group.a) left.emplace(a.starred[i].numbers, i);
    for (const size_t j : group.b) right.emplace(b.starred[j].numbers, j);
    if (left.size() != group.a.size() ||
        !std::ranges::equal(left, right, {}, &NumberOf::first,
                            &NumberOf::first))
      return;
    for (const auto& [numbers, i] : left) partners_[i] = right.at(numbers);
  }

  std::vector<EqualTensors> groups_;
  std::vector<size_t> of_a_, of_b_;
  std::vector<std::optional<size_t>> partners_;
};

using Pairs = std::map<std::string, std::string>;  // of patterns, or of names
using NamePair = std::pair<std::string, std::string>;

// Patterns whose equal tensors have the numbers that they had; the names of
// those whose have not.
struct ByContent {
  Pairs patterns, names;
};

ByContent match_content(const Side& a, const Side& b, const Equals& equals) {
  std::map<std::string, std::set<std::string>> right_of, left_of;
  std::set<std::string> moved;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto j = equals.partner(i);
    if (!j) continue;
    right_of[a.starred[i].pattern].insert(b.starred[*j].pattern);
    left_of[b.starred[*j].pattern].insert(a.starred[i].pattern);
    if (a.starred[i].numbers != b.starred[*j].numbers)
      moved.insert(a.starred[i].pattern);
  }
  const auto agreed = [&](const std::string& pattern) {
    const auto& right = right_of.at(pattern);
    return !moved.contains(pattern) && right.size() == 1 &&
           left_of.at(*right.begin()).size() == 1;
  };
  ByContent found;
  for (size_t i = 0; i < a.size(); ++i)
    if (const auto j = equals.partner(i)) {
      const Starred &x = a.starred[i], &y = b.starred[*j];
      if (agreed(x.pattern))
        found.patterns.emplace(x.pattern, y.pattern);
      else
        found.names.emplace(a.name(i), b.name(*j));
    }
  return found;
}

// A pattern, and the norms of its tensors in the order of their numbers.
struct Measured {
  std::string pattern;
  std::vector<double> norms;
};

// How far two patterns' norms are apart: the mean of their ratios' logarithms.
double distance(const Measured& a, const Measured& b) {
  double sum = 0;
  for (size_t i = 0; i < a.norms.size(); ++i)
    if (a.norms[i] != b.norms[i])
      sum += std::abs(std::log(a.norms[i] / b.norms[i]));
  return sum / static_cast<double>(a.norms.size());
}

// The one of `others` whose norms are those of `one`: within a few percent, and
// much nearer than any other's. None if that is not plain.
const Measured* nearest(const Measured& one,
                        const std::vector<Measured>& others) {
  constexpr double kFar = 0.05, kPlain = 4;
  const Measured* found = nullptr;
  double least = std::numeric_limits<double>::infinity(), next = least;
  for (const Measured& other : others) {
    const double apart = distance(one, other);
    if (apart < least) {
      next = std::exchange(least, apart);
      found = &other;
    } else {
      next = std::min(next, apart);
    }
  }
  return least <= kFar && next >= kPlain * least && next > 0 ? found : nullptr;
}

// The tensors of a pattern, in their order.
struct PatternRow {
  std::vector<size_t> tensors;
  std::vector<double> norms;
  std::string shapes, numbers;
};

std::map<std::string, PatternRow> rows_of(const Side& side) {
  std::map<std::string, PatternRow> rows;
  for (size_t i = 0; i < side.size(); ++i) {
    PatternRow& row = rows[side.starred[i].pattern];
    row.tensors.push_back(i);
    row.norms.push_back(reshard::norm(side.reading.stats[i]));
    row.shapes += to_string(side.catalog.tensors[i].shape);
    row.numbers += side.starred[i].numbers + ";";
  }
  return rows;
}

// The tensor of `right` whose norm is plainly that of each of `left`; empty if
// that is not plain for all, or if they are in the order that they had.
std::vector<size_t> moved(const PatternRow& left, const PatternRow& right) {
  constexpr size_t kFew = 3, kMost = 4096;  // two may be so by chance
  if (left.norms.size() < kFew || left.norms.size() > kMost) return {};
  std::vector<Measured> others;
  for (size_t i = 0; i < right.norms.size(); ++i)
    others.push_back({std::to_string(i), {right.norms[i]}});
  std::vector<size_t> to;
  for (const double norm : left.norms) {
    const Measured* const other = nearest({"", {norm}}, others);
    if (other == nullptr) return {};
    to.push_back(static_cast<size_t>(other - others.data()));
  }
  if (std::set<size_t>(to.begin(), to.end()).size() != to.size() ||
      std::ranges::is_sorted(to))
    return {};
  return to;
}

// Of patterns with these shapes, of so many tensors, which equal none of the
// other: the only ones, or those whose norms are plainly the same.
void match_shapes(const Side& a, const Side& b, const Equals& equals,
                  ByContent& found) {
  const auto of_a = rows_of(a), of_b = rows_of(b);
  std::set<std::string> taken;
  for (const auto& [left, right] : found.patterns) {
    taken.insert("a " + left);
    taken.insert("b " + right);
  }
  for (size_t i = 0; i < a.size(); ++i)
    if (found.names.contains(a.name(i)))
      taken.insert({"a " + a.starred[i].pattern,
                    "b " + b.starred[*equals.partner(i)].pattern});
  using Key = NamePair;  // shapes, numbers
  const auto index = [&](const auto& rows, const std::string& side) {
    std::map<Key, std::vector<Measured>> alike;
    for (const auto& [pattern, row] : rows)
      if (!taken.contains(side + pattern))
        alike[{row.shapes, row.numbers}].push_back({pattern, row.norms});
    return alike;
  };
  const auto left_rows = index(of_a, "a "), right_rows = index(of_b, "b ");
  const auto add = [&](const Measured& left, const Measured& right) {
    const PatternRow &x = of_a.at(left.pattern), &y = of_b.at(right.pattern);
    for (size_t i = 0; i < x.tensors.size(); ++i)
      if (equals.has_equal_a(x.tensors[i]) || equals.has_equal_b(y.tensors[i]))
        return;
    const std::vector<size_t> to = moved(x, y);
    for (size_t i = 0; i < to.size(); ++i)
      if (a.catalog.tensors[x.tensors[i]].shape !=
          b.catalog.tensors[y.tensors[to[i]]].shape)
        return;
    if (to.empty()) found.patterns.emplace(left.pattern, right.pattern);
    for (size_t i = 0; i < to.size(); ++i)
      found.names.emplace(a.name(x.tensors[i]), b.name(y.tensors[to[i]]));
  };
  for (const auto& [key, left] : left_rows) {
    const auto right = right_rows.find(key);
    if (right == right_rows.end()) continue;
    if (left.size() == 1 && right->second.size() == 1) {
      add(left[0], right->second[0]);
      continue;
    }
    for (const Measured& one : left) {
      const Measured* const other = nearest(one, right->second);
      if (other != nullptr && nearest(*other, left) == &one) add(one, *other);
    }
  }
}

// What precedes the parts of two names that are alike: "model." and
// "decoder.".
std::pair<std::string, std::string> prefixes(const std::string& a,
                                             const std::string& b) {
  size_t same = 0;
  while (same < a.size() && same < b.size() &&
         a[a.size() - 1 - same] == b[b.size() - 1 - same])
    ++same;
  // Whole parts alone.
  const auto whole = [&](const std::string& name, size_t left) {
    return left == 0 || name[left - 1] == '.';
  };
  while (same > 0 && !(whole(a, a.size() - same) && whole(b, b.size() - same)))
    --same;
  return {a.substr(0, a.size() - same), b.substr(0, b.size() - same)};
}

// 'a.=b.', if that is shorter; `all`: every tensor of A gets another name.
std::string prefix_text(const Pairs& pairs, bool all) {
  std::set<NamePair, std::greater<>> found;
  for (const auto& [a, b] : pairs) found.insert(prefixes(a, b));
  const bool plain = std::ranges::all_of(found, [&](const auto& pair) {
    const bool adds = pair.first.empty() && all && found.size() == 1;
    return (adds || pair.first.ends_with('.')) &&
           pair.first.find('*') == std::string::npos &&
           pair.first.find_first_of(",=") == std::string::npos &&
           pair.second.find_first_of("*,=") == std::string::npos;
  });
  if (!plain || 2 * found.size() > pairs.size() + 1) return "";
  // The first that matches is taken: "a.b." stands before "a.".
  std::string text;
  for (const auto& [a, b] : found)
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", a, b);
  return text;
}

// Names come first: the first rule that matches is taken.
std::string json_text(const Pairs& names, const Pairs& patterns) {
  auto rules = nlohmann::ordered_json::object();
  for (const auto* some : {&names, &patterns})
    for (const auto& [a, b] : *some) rules[a] = b;
  return rules.empty() ? "" : rules.dump();
}

// Rules as they would be applied to all of A.
class Trial {
 public:
  Trial(const Catalog& a, const Side& only_a, const Side& only_b,
        const Catalog& b, const Equals& equals)
      : equals_(equals) {
    for (const Tensor& tensor : a.tensors)
      names_.tensors.push_back({.name = tensor.name});
    for (const Tensor& tensor : b.tensors) all_b_.insert(tensor.name);
    for (size_t i = 0; i < only_a.size(); ++i) a_.emplace(only_a.name(i), i);
    for (size_t i = 0; i < only_b.size(); ++i) b_.emplace(only_b.name(i), i);
  }

  // The names of A's tensors that become names of B's; none if two would have
  // one name, or if a tensor would meet another than the one that it equals.
  Pairs met(const std::string& rules) const {
    if (rules.empty()) return {};
    Catalog renamed = names_;
    try {
      rename(renamed, rules);
    } catch (const Error&) {
      return {};
    }
    Pairs met;
    for (size_t i = 0; i < renamed.tensors.size(); ++i) {
      const std::string &old = names_.tensors[i].name,
                        &now = renamed.tensors[i].name;
      if (old == now) continue;
      if (all_b_.contains(old)) return {};  // it had met
      if (!all_b_.contains(now)) continue;
      if (!allowed(old, now)) return {};
      met.emplace(old, now);
    }
    return met;
  }

 private:
  bool allowed(const std::string& old, const std::string& now) const {
    const auto x = a_.find(old);
    const auto y = b_.find(now);
    const bool left = x != a_.end(), right = y != b_.end();
    if (left && right) return equals_.allow(x->second, y->second);
    return !(left && equals_.has_equal_a(x->second)) &&
           !(right && equals_.has_equal_b(y->second));
  }

  const Equals& equals_;
  Catalog names_;
  std::set<std::string_view> all_b_;
  std::unordered_map<std::string_view, size_t> a_, b_;
};

// Patterns as the names that they stand for.
Pairs spelled(const Side& a, const Side& b, const Pairs& patterns) {
  std::map<NamePair, std::string> names;  // of B, by pattern and numbers
  for (size_t j = 0; j < b.size(); ++j)
    names.emplace(NamePair(b.starred[j].pattern, b.starred[j].numbers),
                  b.name(j));
  Pairs all;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto to = patterns.find(a.starred[i].pattern);
    if (to == patterns.end()) continue;
    const auto name = names.find(NamePair(to->second, a.starred[i].numbers));
    if (name != names.end()) all.emplace(a.name(i), name->second);
  }
  return all;
}

}  // namespace

std::optional<RenameRules> rename_rules(const Catalog& a, const Catalog& b,
                                        const Engine& engine) {
  std::vector<Tensor> of_a = lonely(a, b), of_b = lonely(b, a);
  const bool all = of_a.size() == a.tensors.size();
  keep_shapes_of(of_b, of_a);
  keep_shapes_of(of_a, of_b);
  if (of_a.empty()) return std::nullopt;
  Side only_a(a, std::move(of_a)), only_b(b, std::move(of_b));
  for (Side* side : {&only_a, &only_b})
    side->reading = read_all(side->catalog, engine, {.stats = true});
  const Equals equals(only_a, only_b);
  ByContent found = match_content(only_a, only_b, equals);
  match_shapes(only_a, only_b, equals, found);

  const Trial trial(a, only_a, only_b, b, equals);
  Pairs names = spelled(only_a, only_b, found.patterns);
  names.insert(found.names.begin(), found.names.end());
  Pairs mixed = found.names;
  mixed.insert(found.patterns.begin(), found.patterns.end());
  RenameRules made;
  Pairs met;
  const std::string exact = json_text(names, {});
  for (const std::string& rules :
       {prefix_text(mixed, all), json_text(found.names, found.patterns),
        exact}) {
    Pairs joined = trial.met(rules);
    if (joined.size() <= met.size()) continue;
    met = std::move(joined);
    made.rules = rules;
    // Stars beside many names are no shorter to read.
    const bool by_name = rules == exact || !found.names.empty();
    made.pairs.clear();
    if (by_name && rules.starts_with('{'))
      made.pairs.assign(names.begin(), names.end());
  }
  made.tensors = met.size();
  std::set<std::string_view> taken;
  for (const auto& [old, now] : met) taken.insert(now);
  for (const EqualTensors& group : equals.groups()) {
    if (group.a.size() < 2 && group.b.size() < 2) continue;
    Alike alike;
    for (const size_t i : group.a)
      if (!met.contains(only_a.name(i))) alike.a.push_back(only_a.name(i));
    for (const size_t j : group.b)
      if (!taken.contains(only_b.name(j))) alike.b.push_back(only_b.name(j));
    if (!alike.a.empty() && !alike.b.empty())
      made.alike.push_back(std::move(alike));
  }
  if (made.rules.empty() && made.alike.empty()) return std::nullopt;
  return made;
}

}  // namespace ckpt::library
