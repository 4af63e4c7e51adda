// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "ckpt/error.h"
#include "formats/runs/compose.h"
#include "formats/runs/forms.h"
#include "formats/runs/trainer.h"
#include "lib/text/format.h"

namespace ckpt::runs {
namespace {

using text::printable;

// Two models in a step have their roles before their names.
void check_one_model(const Catalog& source) {
  std::set<std::string_view> first;
  for (const Tensor& tensor : source.tensors)
    if (tensor.kind == Kind::model)
      first.insert(
          std::string_view(tensor.name).substr(0, tensor.name.find('.')));
  if (!source.run || first.size() < 2) return;
  const Trainer& trainer = find_trainer(source.run->trainer);
  std::string roles;
  for (const std::string_view word : first) {
    std::string role(word);
    if (role.starts_with("model_") ||
        std::ranges::find(trainer.roles, role) != trainer.roles.end() ||
        std::ranges::find(trainer.roles, "_" + role) != trainer.roles.end())
      roles += (roles.empty() ? "" : ", ") + role;
  }
  if (roles.empty()) return;
  throw unfaithful_error({source.path, {}},
                         "a step of several models ({}): a step of one is "
                         "written",
                         roles)
      .with_hint("name the folder of the one that you mean");
}

// torchtitan's models have names of their own and query and key rows in another
// order: under a model's names of transformers it would find nothing.
void check_names(const Catalog& source, const Layout& layout) {
  if (layout.form != "torchtitan") return;
  for (const Tensor& tensor : source.tensors)
    if (tensor.kind == Kind::model &&
        tensor.name.find(".self_attn.") != tensor.name.npos)
      throw unfaithful_error(
          {source.path, printable(tensor.name)},
          "is a name of transformers; torchtitan's models have others "
          "(attention.wq.weight) and rotary rows in another order")
          .with_hint("--trainer lightning or accelerate keeps names");
}

}  // namespace

bool is_composed(const Catalog& source, const Layout& layout) {
  return !layout.form.empty() && layout.form != trainer_in(source);
}

Catalog review_composed(Catalog source, const Layout& layout) {
  const Topology& asked = layout.topology;
  find_form(layout.form, asked.dp, trainer_in(source));
  if (asked.tp != 1 || asked.pp != 1 || asked.ep != 1)
    throw unfaithful_error({source.path, {}},
                           "a step of {} is cut over data-parallel ranks: {} "
                           "is asked for",
                           layout.form, to_string(asked))
        .with_hint("--dp N says how many ranks there are to be");
  load_objects(source);
  check_one_model(source);
  check_names(source, layout);
  std::string left;
  size_t count = 0;
  std::erase_if(source.tensors, [&](const Tensor& tensor) {
    if (tensor.kind != Kind::other) return false;
    if (count++ == 0) left = printable(tensor.name);
    return true;
  });
  if (count)
    source.problems.push_back(
        {Problem::Severity::kWarning, "tensors_left_out", source.path, left,
         fmt::format("{} of neither model nor optimizer: {} has no place for "
                     "them",
                     text::counted(count, "tensor"), layout.form)});
  return source;
}

}  // namespace ckpt::runs
