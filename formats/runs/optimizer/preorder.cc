// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/optimizer/preorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::runs {
namespace {

using text::printable;
using NameParts = std::vector<std::string_view>;

NameParts dotted_parts(std::string_view name) {
  NameParts parts;
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('.', at), name.size());
    parts.push_back(name.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

// "fc1" and "fc2" are counted, as "1" and "2" are: both orders are the same.
std::string without_digits(std::string_view word) {
  std::string out;
  for (const char c : word)
    if (!text::is_digit(c)) out += c;
  return out;
}

// Goes through the names as torch goes through the modules.
class ModuleWalk {
 public:
  // False if `name` can't come now; why() says what is wrong.
  bool take(std::string_view name) {
    const NameParts parts = dotted_parts(name);
    const size_t depth = parts.size() - 1;  // of its module
    size_t same = 0;
    while (same < std::min(depth, open_.size()) && parts[same] == open_[same])
      ++same;
    // Back in a module, after a child of it.
    if (same == depth && open_.size() > depth)
      return fail(name, "comes after the tensors of modules in its own");
    for (size_t d = open_.size(); d > same; --d)
      closed_.insert(joined(open_, d));
    for (size_t d = same + 1; d <= depth; ++d)
      if (closed_.contains(joined(parts, d)))
        return fail(name, "is apart from the others of its module");
    if (same < open_.size() && same < depth) choose(open_[same], parts[same]);
    if (same == depth && depth == open_.size() && !leaf_.empty())
      choose(leaf_, parts[depth]);
    open_.assign(parts.begin(), parts.end() - 1);
    leaf_ = parts[depth];
    return true;
  }

  std::string why() const { return why_; }

  // Every choice that a model's author had is as if sorted: a coincidence for
  // one or two, not for more.
  bool is_sorted() const {
    constexpr size_t kCoincidence = 2;
    return !unsorted_ && choices_.size() >= kCoincidence;
  }
  const std::string& descent() const { return descent_; }

 private:
  static std::string joined(const NameParts& parts, size_t count) {
    std::string out;
    for (size_t i = 0; i < count; ++i) (out += parts[i]) += '.';
    return out;
  }

  bool fail(std::string_view name, const char* what) {
    why_ = fmt::format("{} {}", printable(name), what);
    return false;
  }

  // `second` was registered after `first`, in the same module.
  void choose(std::string_view first, std::string_view second) {
    if (text::is_digits(first) && text::is_digits(second)) {
      // A list of modules counts up.
      if (descent_.empty() &&
          std::pair(first.size(), first) > std::pair(second.size(), second))
        descent_ = fmt::format("{} before {}", first, second);
      return;
    }
    const std::string a = without_digits(first), b = without_digits(second);
    if (a == b) return;
    if (second < first)
      unsorted_ = true;
    else
      choices_.emplace(a, b);
  }

  NameParts open_;  // the module of the last name
  std::string_view leaf_;
  std::set<std::string> closed_;
  std::set<std::pair<std::string, std::string>> choices_;
  bool unsorted_ = false;
  std::string descent_;  // "10 before 2"
  std::string why_;
};

}  // namespace

std::string doubt_in_order(std::span<const Tensor* const> tensors) {
  ModuleWalk walk;
  for (const Tensor* tensor : tensors)
    if (!walk.take(tensor->name))
      return fmt::format("the pickle is not in the order of modules: {}",
                         walk.why());
  if (!walk.descent().empty())
    return fmt::format(
        "the pickle is not in the order of modules: {} in a list",
        walk.descent());
  if (walk.is_sorted())
    return "the pickle is sorted by name, which tells no order";
  return {};
}

std::string alone_in_shard(std::span<const Tensor* const> tensors) {
  std::map<uint32_t, std::pair<size_t, const Tensor*>> files;
  for (const Tensor* tensor : tensors) {
    if (tensor->pieces.size() != 1) return {};  // parts of ranks
    auto& [count, one] = files[tensor->pieces[0].extent.file];
    ++count;
    one = tensor;
  }
  if (files.size() < 2) return {};
  for (const auto& [file, held] : files)
    if (held.first == 1)
      return fmt::format(
          "{} is alone in its file, and may have been written before others",
          printable(held.second->name));
  return {};
}

}  // namespace ckpt::runs
