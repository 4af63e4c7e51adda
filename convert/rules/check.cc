// SPDX-License-Identifier: Apache-2.0
#include "convert/rules/check.h"

#include <set>
#include <unordered_set>
#include <utility>

#include "ckpt/error.h"
#include "convert/config/gguf.h"
#include "convert/rules/ops.h"
#include "convert/rules/trained_experts.h"
#include "models/key_table.h"

namespace ckpt::families {
namespace {

// The dialect's own table of shapes, if it has one (fairseq2), computed from
// the configuration that the numbers make.
KeyTable table_of(const Numbers& numbers) {
  const Dialect& dialect = numbers.dialect();
  if (dialect.name != "fairseq2" || dialect.config.is_null()) return {};
  Config config;
  const Json made = config_table(dialect.config, numbers);
  for (const auto& [field, value] : made.items())
    if (value.is_number_integer()) config[field] = value.get<int64_t>();
  return KeyTable::for_family(numbers.family().name(), config);
}

class Checker {
 public:
  Checker(const Numbers& numbers, const Shapes& tensors, bool hf_alone)
      : numbers_(numbers), family_(numbers.family()), hf_alone_(hf_alone) {
    report_.dialect = numbers.dialect().name;
    for (const auto& [name, shape] : tensors) add(name, shape);
  }

  DialectCheck run() {
    try {
      if (!hf_alone_) table_ = table_of(numbers_);
      NamesThere names{.hf = {}, .dialect = {}, .hf_alone = hf_alone_};
      for (const auto& [name, shape] : there_) names.hf.push_back(name);
      const std::vector<Instance> all =
          instances(numbers_.dialect(), numbers_, names);
      split_trained(all);
      for (const Instance& one : all) check(one);
      for (const std::string& name : unread_names(numbers_))
        if (there_.contains(name)) used_.insert(name);
      for (const auto& [name, shape] : there_)
        if (!used_.contains(name) &&
            !Family::ignored(name, family_.hf().ignore) &&
            !family_.repeats(name))
          find("unknown", name, "no rule uses it");
    } catch (const Error& error) {
      report_.findings.push_back({"number", {}, error.problem(), error.hint()});
    }
    report_.used = used_.size();
    report_.made = made_.size();
    report_.numbers = numbers_.used();
    return std::move(report_);
  }

 private:
  void find(std::string kind, std::string tensor, std::string message) {
    report_.findings.push_back(
        {std::move(kind), std::move(tensor), std::move(message), {}});
  }

  void add(const std::string& name, const Shape& shape) {
    const std::string normal = family_.normal_name(name);
    if (!there_.emplace(normal, shape).second)
      find("doubled", name, "there is a " + normal + " already");
  }

  // Experts in one tensor, where the rules have them one by one.
  void split_trained(const std::vector<Instance>& all) {
    std::unordered_set<std::string_view> wanted;
    for (const Instance& one : all) wanted.insert(one.hf.begin(), one.hf.end());
    std::vector<std::pair<std::string, Shape>> others;
    for (const auto& [name, shape] : there_)
      if (!wanted.contains(name)) others.emplace_back(name, shape);
    for (const auto& [name, shape] : others) {
      const std::vector<std::string> saved = saved_experts(
          name, shape,
          [&](const std::string& one) { return wanted.contains(one); });
      if (saved.empty()) continue;
      for (const std::string& one : saved)
        there_.emplace(one,
                       Shape({shape[1] / (saved.size() / shape[0]), shape[2]}));
      there_.erase(name);
    }
  }

  void check(const Instance& one) {
    std::vector<Shape> shapes;
    std::vector<std::string> missing;
    for (const std::string& name : one.hf) {
      const auto found = there_.find(name);
      if (found == there_.end())
        missing.push_back(name);
      else
        shapes.push_back(found->second);
    }
    if (!missing.empty() && one.rule->optional) return;
    for (const std::string& name : missing)
      find("missing", name, "needed for " + one.to);
    if (!missing.empty())  // what is there of the others has its rule
      for (const std::string& name : one.hf)
        if (there_.contains(name)) used_.insert(name);
    if (!made_.insert(one.to).second)
      find("doubled", one.to, "two rules make it");
    if (missing.empty()) use(one, shapes);
  }

  void use(const Instance& one, const std::vector<Shape>& shapes) {
    for (const std::string& name : one.hf) {
      const bool again = !used_.insert(name).second;
      // Slices of one stacked tensor share their source, and so do copies.
      const bool shared = one.rule->alias || takes_slice(*one.rule);
      if (again && !shared) find("doubled", name, "used again by " + one.to);
    }
    const std::string name = one.hf.empty() ? one.to : one.hf[0];
    try {
      const Shape shape = shape_of(one, numbers_, shapes);
      if (hf_alone_ && !lies_right(one.to, shape))
        find("misshapen", name,
             "is " + to_string(shapes[0]) +
                 ", which has rows and columns the other way round");
      const auto wanted = table_.shape(one.to);
      if (wanted && *wanted != shape)
        find("misshapen", name,
             one.to + " would be " + to_string(shape) + ", not " +
                 to_string(*wanted));
    } catch (const Error& error) {
      // A missing number is not a shape mismatch.
      if (!error.hint().empty()) throw;
      find("misshapen", name,
           error.problem() + beside(one) +
               (turned(one, shapes) ? "; transposed it would fit" : ""));
    }
  }

  // The others that are fused with the first: any of them may be the odd one.
  static std::string beside(const Instance& one) {
    constexpr size_t kFew = 4;
    std::string names;
    for (size_t i = 1; i < one.hf.size() && one.hf.size() <= kFew; ++i)
      names += (i == 1 ? " (beside " : ", ") + one.hf[i];
    return names.empty() ? names : names + ")";
  }

  // Megatron's first layer reads the model's width, and the second gives it.
  bool lies_right(std::string_view to, const Shape& shape) const {
    const bool first = to.ends_with(".mlp.linear_fc1.weight");
    if (numbers_.dialect().name != "mcore" || shape.size() != 2 ||
        (!first && !to.ends_with(".mlp.linear_fc2.weight")) ||
        !numbers_.dialect().vars.contains("$H"))
      return true;
    const uint64_t width = numbers_.whole("$H", {}, "width");
    // Another width than the model's may be a projection's.
    return shape[first ? 1 : 0] == width || shape[first ? 0 : 1] != width;
  }

  // True if it fits with rows and columns swapped.
  bool turned(const Instance& one, std::vector<Shape> shapes) const {
    for (Shape& shape : shapes) {
      if (shape.size() != 2) return false;
      std::swap(shape[0], shape[1]);
    }
    try {
      shape_of(one, numbers_, shapes);
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  const Numbers& numbers_;
  const Family& family_;
  const bool hf_alone_;
  KeyTable table_;
  Shapes there_;
  std::set<std::string> used_;
  std::set<std::string> made_;
  DialectCheck report_;
};

}  // namespace

DialectCheck check_dialect(const Numbers& numbers, const Shapes& tensors,
                           bool hf_alone) {
  return Checker(numbers, tensors, hf_alone).run();
}

bool covers_family(const Dialect& dialect) {
  return !dialect.rules.empty() && dialect.name != kGguf;
}

}  // namespace ckpt::families
