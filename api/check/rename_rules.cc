// SPDX-License-Identifier: Apache-2.0
#include "api/check/rename_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <unordered_set>
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
Catalog lonely_part(const Catalog& catalog, const Catalog& other) {
  std::unordered_set<std::string_view> names;
  for (const Tensor& tensor : other.tensors) names.insert(tensor.name);
  std::vector<Tensor> lonely;
  for (const Tensor& tensor : catalog.tensors)
    if (!names.contains(tensor.name) && tensor.kind == Kind::model)
      lonely.push_back(tensor);
  if (lonely.empty()) return {};
  Catalog part = catalog;
  part.tensors = std::move(lonely);
  return part;
}

using Pairs = std::map<std::string, std::string>;  // of patterns

// What every tensor of a pattern says, or nothing if they don't agree.
class Agreement {
 public:
  void say(const std::string& a, const std::string& b) { said_[a].insert(b); }
  void add_to(Pairs& pairs) const {
    std::map<std::string, size_t> used;
    for (const auto& [a, all] : said_)
      if (all.size() == 1) ++used[*all.begin()];
    for (const auto& [a, all] : said_)
      if (all.size() == 1 && used[*all.begin()] == 1)
        pairs.emplace(a, *all.begin());
  }

 private:
  std::map<std::string, std::set<std::string>> said_;
};

// The tensors of one side that the other has not got, and what is known of
// their values.
struct Side {
  Catalog catalog;
  Reading reading;
};

// Of tensors with the same content, and no other like them.
void match_content(const Side& a, const Side& b, Pairs& pairs) {
  using Key = std::tuple<uint64_t, uint64_t, std::string>;
  const auto index = [&](const Side& side) {
    std::map<Key, std::vector<const Tensor*>> found;
    for (size_t i = 0; i < side.catalog.tensors.size(); ++i) {
      const Tensor& tensor = side.catalog.tensors[i];
      const Digest& digest = side.reading.digests[i];
      found[{digest.d0, digest.d1, to_string(tensor.shape)}].push_back(&tensor);
    }
    return found;
  };
  const auto of_a = index(a), of_b = index(b);
  Agreement agreed;
  for (const auto& [key, left] : of_a) {
    const auto right = of_b.find(key);
    if (left.size() != 1 || right == of_b.end() || right->second.size() != 1)
      continue;
    const Starred x = starred(left[0]->name),
                  y = starred(right->second[0]->name);
    if (x.numbers == y.numbers) agreed.say(x.pattern, y.pattern);
  }
  agreed.add_to(pairs);
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

// Of patterns with these shapes, of so many tensors: the only ones, or those
// whose norms are plainly the same.
void match_shapes(const Side& a, const Side& b, Pairs& pairs) {
  using Key = std::pair<std::string, std::string>;  // shapes, numbers
  std::set<std::string> taken;
  for (const auto& [left, right] : pairs) taken.insert(right);
  const auto index = [&](const Side& side, const auto& is_taken) {
    std::map<std::string, std::pair<Key, std::vector<double>>> patterns;
    for (size_t i = 0; i < side.catalog.tensors.size(); ++i) {
      const Tensor& tensor = side.catalog.tensors[i];
      const Starred name = starred(tensor.name);
      if (is_taken(name.pattern)) continue;
      auto& [key, norms] = patterns[name.pattern];
      key.first += to_string(tensor.shape);
      key.second += name.numbers + ";";
      norms.push_back(reshard::norm(side.reading.stats[i]));
    }
    std::map<Key, std::vector<Measured>> found;
    for (const auto& [pattern, known] : patterns)
      found[known.first].push_back({pattern, known.second});
    return found;
  };
  const auto of_a = index(
      a, [&](const std::string& pattern) { return pairs.contains(pattern); });
  const auto of_b = index(
      b, [&](const std::string& pattern) { return taken.contains(pattern); });
  for (const auto& [key, left] : of_a) {
    const auto right = of_b.find(key);
    if (right == of_b.end()) continue;
    if (left.size() == 1 && right->second.size() == 1) {
      pairs.emplace(left[0].pattern, right->second[0].pattern);
      continue;
    }
    for (const Measured& one : left) {
      const Measured* const other = nearest(one, right->second);
      if (other != nullptr && nearest(*other, left) == &one)
        pairs.emplace(one.pattern, other->pattern);
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

// 'a.=b.' if that says all, else an object.
// `all`: every tensor of A gets another name.
std::string rules_text(const Pairs& pairs, bool all) {
  std::set<std::pair<std::string, std::string>> found;
  for (const auto& [a, b] : pairs) found.insert(prefixes(a, b));
  const bool plain = std::ranges::all_of(found, [&](const auto& pair) {
    const bool adds = pair.first.empty() && all && found.size() == 1;
    return (adds || pair.first.ends_with('.')) &&
           pair.first.find('*') == std::string::npos &&
           pair.first.find_first_of(",=") == std::string::npos &&
           pair.second.find_first_of("*,=") == std::string::npos;
  });
  if (!plain || 2 * found.size() > pairs.size() + 1)
    return nlohmann::json(pairs).dump();
  std::string text;
  for (const auto& [a, b] : found)
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", a, b);
  return text;
}

}  // namespace

std::optional<RenameRules> rename_rules(const Catalog& a, const Catalog& b,
                                        const Engine& engine) {
  Side only_a{lonely_part(a, b), {}};
  if (only_a.catalog.tensors.empty()) return std::nullopt;
  Side only_b{lonely_part(b, a), {}};
  if (only_b.catalog.tensors.empty()) return std::nullopt;
  for (Side* side : {&only_a, &only_b})
    side->reading = read_all(side->catalog, engine, {.stats = true});
  Pairs pairs;
  match_content(only_a, only_b, pairs);
  match_shapes(only_a, only_b, pairs);
  if (pairs.empty()) return std::nullopt;
  RenameRules made{.rules = rules_text(pairs, only_a.catalog.tensors.size() ==
                                                  a.tensors.size())};
  Catalog renamed = a;
  try {
    rename(renamed, made.rules);
  } catch (const Error&) {
    return std::nullopt;  // two tensors would get one name
  }
  std::unordered_set<std::string_view> wanted;
  for (const Tensor& tensor : only_b.catalog.tensors)
    wanted.insert(tensor.name);
  for (const Tensor& tensor : renamed.tensors)
    if (wanted.contains(tensor.name)) ++made.tensors;
  if (made.tensors == 0) return std::nullopt;
  return made;
}

}  // namespace ckpt::library
