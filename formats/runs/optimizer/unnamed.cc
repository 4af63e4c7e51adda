// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/optimizer/unnamed.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_set>

#include "ckpt/note.h"
#include "formats/runs/find/pattern.h"
#include "lib/text/format.h"

namespace ckpt::runs {
namespace {

using text::printable;

// A rate that is a tensor: an option of a group, not a parameter's state.
bool is_option(const Tensor& tensor) {
  return tensor.name.find("param_groups.") != tensor.name.npos;
}

}  // namespace

void say_unnamed(Catalog& catalog) {
  std::unordered_set<std::string_view> model;
  for (const Tensor& tensor : catalog.tensors)
    if (tensor.kind == Kind::model) model.insert(tensor.name);
  std::set<std::string_view> unnamed, trained;
  for (const Tensor& tensor : catalog.tensors) {
    if (tensor.kind != Kind::optim || is_option(tensor)) continue;
    if (tensor.param.empty() || whole_number(tensor.param))
      unnamed.insert(tensor.name);
    else if (!model.contains(tensor.param))
      trained.insert(tensor.param);
  }
  const auto said = [&](std::string_view kind) {
    return std::ranges::find(catalog.problems, kind, &Problem::kind) !=
           catalog.problems.end();
  };
  if (!unnamed.empty() && !said("numbered_state"))
    catalog.problems.push_back(warning(
        "numbered_state", {catalog.path, {}},
        "{} of the optimizer ({}): no parameter is known for them, and they "
        "keep the file's own names",
        text::counted(unnamed.size(), "tensor"), printable(*unnamed.begin())));
  if (!trained.empty() && !said("trained_names"))
    catalog.problems.push_back(
        remark("trained_names", {catalog.path, {}},
               "the optimizer has {} that the model's files don't have ({}): "
               "their states keep the names that they are trained under",
               text::counted(trained.size(), "parameter"),
               printable(*trained.begin())));
}

}  // namespace ckpt::runs
