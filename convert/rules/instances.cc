// SPDX-License-Identifier: Apache-2.0
#include "convert/rules/instances.h"

#include <algorithm>
#include <set>

#include "ckpt/error.h"

namespace ckpt::families {
namespace {

// The largest models have some 100,000 tensors.
constexpr uint64_t kMostNames = 4'000'000;

// The indices in the braces of a name, in the order in which they appear.
std::vector<std::string> indices_in(const std::string& name,
                                    const Dialect& dialect) {
  std::vector<std::string> found;
  for (size_t open = name.find('{'); open != name.npos;
       open = name.find('{', open + 1)) {
    const size_t close = name.find('}', open);
    const Expr inside(name.substr(open + 1, close - open - 1));
    for (const std::string& used : inside.names())
      if (dialect.index.contains(used) && std::ranges::count(found, used) == 0)
        found.push_back(used);
  }
  return found;
}

class Expander {
 public:
  Expander(const Dialect& dialect, const Numbers& numbers,
           const NamesThere& there)
      : dialect_(dialect), numbers_(numbers), there_(there) {}

  std::vector<Instance> run() {
    if (!there_.hf_alone) check_requirements();
    for (const Rule& rule : dialect_.rules) {
      if (rule.rest() || (there_.dialect.empty() && is_older(dialect_, rule)))
        continue;
      rule_ = &rule;
      names_ = indices_in(rule.to, dialect_);
      index_.clear();
      repeat(0);
    }
    add_rest();
    return std::move(all_);
  }

 private:
  // Checks what the dialect can't say about a model, so that nothing would
  // tell.
  void check_requirements() const {
    const auto conditions = dialect_.section.find("requires");
    if (conditions == dialect_.section.end()) return;
    for (const Json& pair : *conditions) {
      if (numbers_.holds(pair[0].get<std::string>())) continue;
      throw unfaithful_error({numbers_.source(), {}}, "family {} in {}: {}",
                             numbers_.family().name(), dialect_.name,
                             pair[1].get<std::string>())
          .with_hint("needed: " + pair[0].get<std::string>());
    }
  }

  // For every value of the indices from names_[depth] on.
  void repeat(size_t depth) {
    if (depth == names_.size()) return add();
    const uint64_t count = numbers_.count(names_[depth]);
    // Counts them before the loop: `when` may refuse all of them.
    claim(count);
    for (uint64_t i = 0; i < count; ++i) {
      index_[names_[depth]] = i;
      repeat(depth + 1);
    }
    index_.erase(names_[depth]);
  }

  void add() {
    if (!numbers_.holds(rule_->when, index_)) return;
    Instance one;
    one.rule = rule_;
    one.index = index_;
    one.to = numbers_.fill(rule_->to, index_);
    if (rule_->each.empty()) {
      for (const std::string& name : rule_->hf)
        one.hf.push_back(numbers_.fill(name, index_));
    } else {
      spell_out(one.hf);
    }
    claim(one.hf.size());
    all_.push_back(std::move(one));
  }

  void add_rest() {
    const bool any = std::ranges::any_of(dialect_.rules, &Rule::rest);
    if (!any) return;
    std::set<std::string> taken;
    for (const Instance& one : all_) {
      taken.insert(one.to);
      taken.insert(one.hf.begin(), one.hf.end());
    }
    for (const Rule& rule : dialect_.rules) {
      if (!rule.rest() || !numbers_.holds(rule.when)) continue;
      const std::string to = rule.to.substr(0, rule.to.size() - 2);
      const std::string hf = rule.hf[0].substr(0, rule.hf[0].size() - 2);
      for (const std::string& name : there_.hf)
        if (name.starts_with(hf) && taken.insert(name).second)
          all_.push_back({&rule, {}, to + name.substr(hf.size()), {name}});
      for (const std::string& name : there_.dialect)
        if (name.starts_with(to) && taken.insert(name).second)
          all_.push_back({&rule, {}, name, {hf + name.substr(to.size())}});
    }
  }

  void spell_out(std::vector<std::string>& names) {
    const uint64_t count = numbers_.count(rule_->each);
    claim(count);
    Indices at = index_;
    for (uint64_t i = 0; i < count; ++i) {
      at[rule_->each] = i;
      names.push_back(numbers_.fill(rule_->hf[0], at));
    }
  }

  void claim(uint64_t count) {
    names_claimed_ += std::min(count, kMostNames);
    if (count <= kMostNames && names_claimed_ <= kMostNames) return;
    throw unfaithful_error({numbers_.source(), {}},
                           "family {}: more than {} tensors",
                           numbers_.family().name(), kMostNames)
        .with_hint("the numbers of layers and experts multiply to it");
  }

  const Dialect& dialect_;
  const Numbers& numbers_;
  const NamesThere& there_;
  const Rule* rule_ = nullptr;
  std::vector<std::string> names_;
  Indices index_;
  std::vector<Instance> all_;
  uint64_t names_claimed_ = 0;
};

}  // namespace

bool is_older(const Dialect& dialect, const Rule& rule) {
  const auto older = dialect.section.find("older");
  return older != dialect.section.end() &&
         std::ranges::count(*older, Json(rule.to)) != 0;
}

std::vector<Instance> instances(const Dialect& dialect, const Numbers& numbers,
                                const NamesThere& there) {
  return Expander(dialect, numbers, there).run();
}

std::vector<std::string> unread_names(const Numbers& numbers) {
  std::vector<std::string> names;
  const Json& traits = numbers.family().traits();
  const auto unread = traits.find("unread");
  if (unread == traits.end() || !unread->is_object()) return names;
  const uint64_t layers = std::min(numbers.count("l"), kMostNames);
  for (const auto& [name, when] : unread->items())
    for (uint64_t l = 0; when.is_string() && l < layers; ++l)
      if (numbers.holds(when.get<std::string>(), {{"l", l}}))
        names.push_back(numbers.fill(name, {{"l", l}}));
  return names;
}

}  // namespace ckpt::families
