// SPDX-License-Identifier: Apache-2.0
#include "api/check/not_compared.h"

#include <algorithm>

#include "formats/traits.h"

namespace ckpt::library {

std::unordered_set<std::string> without_place(const Catalog& a,
                                              const Catalog& b) {
  const auto is_state = [](const Tensor& tensor) {
    return tensor.kind != Kind::model;
  };
  std::unordered_set<std::string> names;
  if (!formats::traits_of(b.format).is_container || b.run ||
      b.tensors.empty() || std::ranges::any_of(b.tensors, is_state))
    return names;
  for (const Tensor& tensor : a.tensors)
    if (is_state(tensor)) names.insert(tensor.name);
  if (!names.empty() || a.run)
    for (const Object& object : a.objects) names.insert(object.name);
  for (const Object& object : b.objects) names.erase(object.name);
  return names;
}

void mark_not_compared(const std::unordered_set<std::string>& names,
                       std::vector<Difference>& differences) {
  for (Difference& one : differences) {
    if ((one.kind != "only_in_a" && one.kind != "object") ||
        !names.contains(one.tensor))
      continue;
    one.kind = "not_compared";
    one.message += ": the other holds weights alone";
  }
}

}  // namespace ckpt::library
