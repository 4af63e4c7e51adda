// SPDX-License-Identifier: Apache-2.0
#include "formats/fairseq2/groups.h"

#include "ckpt/error.h"

namespace ckpt::fairseq2 {
namespace {

using pickle::Document;
using pickle::Id;

bool fits(const std::map<uint64_t, Signature>& signatures, uint64_t number,
          const Parameter& parameter) {
  const auto found = signatures.find(number);
  if (found == signatures.end() || !found->second.known) return true;
  const Signature& seen = found->second;
  if (!seen.flat) return seen.shape == parameter.shape;
  return element_count(parameter.shape) == seen.shape[0];
}

}  // namespace

std::vector<std::vector<uint64_t>> read_groups(const Document& doc, Id groups,
                                               const std::string& path) {
  if (!doc.is(groups, pickle::Type::kList))
    throw input_error({path, {}}, "param_groups is not a list");
  std::vector<std::vector<uint64_t>> all;
  std::vector<bool> seen;
  for (const Id group : doc.items(groups)) {
    const Id params = doc.find(group, "params");
    if (!doc.is(params, pickle::Type::kList))
      throw input_error({path, {}}, "a parameter group without \"params\"");
    auto& numbers = all.emplace_back();
    for (const Id item : doc.items(params)) {
      const auto number = doc.as_int(item);
      if (!number || *number < 0 || *number > INT32_MAX)
        throw input_error(
            {path, {}},
            "\"params\" has an item that is not a parameter number");
      numbers.push_back(static_cast<uint64_t>(*number));
    }
  }
  size_t count = 0;
  for (const auto& numbers : all) count += numbers.size();
  seen.resize(count);
  for (const auto& numbers : all) {
    for (const uint64_t number : numbers) {
      if (number >= count || seen[number])
        throw input_error({path, {}},
                          "parameter number {} in groups of {} parameters "
                          "is {}",
                          number, count,
                          number >= count ? "too large" : "there twice");
      seen[number] = true;
    }
  }
  return all;
}

std::vector<std::string> name_numbers(
    const std::vector<std::vector<uint64_t>>& groups,
    const std::vector<Parameter>& order,
    const std::map<uint64_t, Signature>& signatures, const std::string& path) {
  size_t count = 0;
  for (const auto& numbers : groups) count += numbers.size();
  if (count != order.size())
    throw unfaithful_error({path, {}},
                           "the optimizer numbers {} parameters, the model's "
                           "files hold {}",
                           count, order.size())
        .with_hint(kWithoutOptimizer);

  std::vector<std::string> names(count);
  std::vector<size_t> next(groups.size(), 0);
  for (const Parameter& parameter : order) {
    std::vector<size_t> fitting;
    for (size_t g = 0; g < groups.size(); ++g) {
      if (next[g] < groups[g].size() &&
          fits(signatures, groups[g][next[g]], parameter))
        fitting.push_back(g);
    }
    if (fitting.size() != 1)
      throw unfaithful_error(
          {path, parameter.name},
          "{} of the {} parameter groups may hold it: the file has numbers, "
          "not names, and the shapes {}",
          fitting.empty() ? "none" : fmt::to_string(fitting.size()),
          groups.size(),
          fitting.empty() ? "do not fit" : "do not tell them apart")
          .with_hint(kWithoutOptimizer);
    const size_t g = fitting.front();
    names[groups[g][next[g]++]] = parameter.name;
  }
  return names;
}

}  // namespace ckpt::fairseq2
