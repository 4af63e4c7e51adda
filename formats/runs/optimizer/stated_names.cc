// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/optimizer/stated_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "formats/runs/optimizer/naming.h"
#include "formats/runs/optimizer/split.h"
#include "lib/text/format.h"
#include "models/wrapper.h"

namespace ckpt::runs {

using text::printable;

bool have_names(const Groups& groups) {
  return !groups.empty() && std::ranges::all_of(groups, [](const Group& one) {
    return one.names.size() == one.numbers.size();
  });
}

Names by_stated_names(const Catalog& catalog, const Range& range,
                      const Groups& groups,
                      std::span<const Tensor* const> model) {
  Names names{.groups = groups, .parameters = {}, .why = {}, .why_not = {}};
  std::map<std::string, Shape> known;
  std::set<std::string> seen, names_of_model;
  for (const Tensor* tensor : model) {
    known.emplace(tensor->name, tensor->shape);
    names_of_model.insert(tensor->name);
  }
  for (const Group& group : groups)
    for (const std::string& name : group.names)
      if (!seen.insert(families::without_wrappers(name)).second)
        names.why_not = fmt::format("the file names {} twice", printable(name));
  const auto place = place_of(seen, names_of_model);
  if (!place) names.why_not = "the names in the file are not the model's";
  names.below = place.value_or("");
  const auto shape_of = [&](const std::string& name) {
    const auto found =
        known.find(names.below + families::without_wrappers(name));
    return found == known.end() ? Wanted() : Wanted(found->second);
  };
  for (const Group& group : groups) {
    auto& parameters = names.parameters.emplace_back();
    for (const std::string& name : group.names)
      parameters.push_back(
          {.name = names.below + families::without_wrappers(name),
           .shape = shape_of(name).value_or(Shape())});
  }
  const auto smaller = projected(
      std::span(catalog.tensors).subspan(range.begin, range.end - range.begin));
  for (size_t t = range.begin; t < range.end; ++t) {
    const Tensor& tensor = catalog.tensors[t];
    const Wanted shape = shape_of(tensor.param);
    if (names.why_not.empty() && shape && tells_shape(tensor) &&
        !smaller.contains(tensor.param) && tensor.shape != *shape)
      names.why_not = fmt::format(
          "{} does not have the shape of the parameter that the file names",
          printable(tensor.name));
  }
  // A reader of torch.save's files takes them; one of ranks' files does not.
  names.stated = std::ranges::all_of(
      std::span(catalog.tensors).subspan(range.begin, range.end - range.begin),
      [&](const Tensor& tensor) {
        return tensor.state.empty() ||
               seen.contains(families::without_wrappers(tensor.param));
      });
  names.why = "the names in the file";
  return names;
}

}  // namespace ckpt::runs
